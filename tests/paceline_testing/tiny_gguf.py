"""Writes a tiny Hugging Face model as a GGUF file, as llama.cpp's converter would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


Kinds = Callable[[str], GGMLQuantizationType]
"""Tells the kind of a weight by the file's name of it."""


def float32_alone(_name: str) -> GGMLQuantizationType:
    """Quantise nothing."""
    return GGMLQuantizationType.F32


def write_tiny_gguf(folder: Path, path: Path, kinds: Kinds = float32_alone) -> None:
    """Write the model in `folder` to `path` with a vocabulary of bytes.

    Its weights are of `kinds`; what is no matrix is float32.
    """
    config = json.loads((folder / "config.json").read_text())
    family: str = config["model_type"]
    architecture = ARCHITECTURES.get(family, family)
    writer = GGUFWriter(path, architecture)
    _write_sizes(writer, config, architecture)
    _write_vocabulary(writer, config["vocab_size"])
    for name, values in load_file(folder / "model.safetensors").items():
        own_name = _name(name, architecture)
        in_order = _values(name, values, config, architecture)
        kind = kinds(own_name) if values.ndim > 1 else GGMLQuantizationType.F32
        if kind == GGMLQuantizationType.F32:
            writer.add_tensor(own_name, in_order)
        else:
            writer.add_tensor(own_name, quantize(in_order, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_name(f"tiny {config['model_type']}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _write_vocabulary(writer: GGUFWriter, size: int) -> None:
    alphabet = sorted(ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *alphabet, alphabet[0] + alphabet[1]]
    tokens += [f"<unused{index}>" for index in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (size - 2))
    writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _name(name: str, architecture: str) -> str:
    stem, _, kind = name.rpartition(".")
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in ends:
        return f"{ends[stem]}.{kind}"
    index, _, part = stem.removeprefix("model.layers.").partition(".")
    after_attention = "post_attention_norm" if "gemma" in architecture else "ffn_norm"
    names = _LAYER_NAMES | {"post_attention_layernorm": after_attention}
    return f"blk.{index}.{names[part]}.{kind}"


def _values(
    name: str, values: np.ndarray[Any, Any], config: dict[str, Any], architecture: str
) -> np.ndarray[Any, Any]:
    if "gemma" in architecture and name.endswith("norm.weight"):
        return values + 1
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = name.split(".")[-2]
    if architecture != "llama" or part not in heads:
        return values
    # Halves of each head become pairs of neighbours: llama.cpp rotates those.
    halves = values.reshape(config[heads[part]], 2, -1, values.shape[-1])
    return halves.swapaxes(1, 2).reshape(values.shape)
