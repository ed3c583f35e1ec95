"""A GGUF file: sizes and tokenizer from its metadata, weights dequantised as they are read."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.gguf_tokenizer import build_tokenizer
from paceline_engine.checkpoint.tokenizer import unique_ids
from paceline_engine.errors import CorruptModel, EngineError, UnsupportedModel
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.families import from_hugging_face

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def open_gguf(path: Path) -> Checkpoint:
    """Read the metadata; the weights stay in the mapped file."""
    try:
        reader = GGUFReader(path)
        metadata = Metadata(reader)
        tensors = GgufTensors(path, reader, metadata)
        return Checkpoint(
            config=_config(metadata, tensors),
            tensors=tensors,
            tokenizer=build_tokenizer(metadata),
            bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=unique_ids(
                metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")
            ),
        )
    except EngineError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError) as error:
        raise CorruptModel(
            f"{path} ({path.stat().st_size:,} bytes) is no whole GGUF file: {error!r}."
        ) from error


class Metadata:
    """The key-value part of the file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, as Python has it."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def __getitem__(self, key: str) -> Any:
        """Return what must be there."""
        field = self._fields.get(key)
        if field is None:
            raise CorruptModel(f"The GGUF file has no metadata {key!r}.")
        return field.contents()


class GgufTensors:
    """Tensors by their Hugging Face names, in float32."""

    def __init__(self, path: Path, reader: GGUFReader, metadata: Metadata) -> None:
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._is_permuted = metadata["general.architecture"] == "llama"
        self._head_size = _head_size(metadata, "llama") if self._is_permuted else 0

    @property
    def origin(self) -> str:
        """The file."""
        return str(self._path)

    def has(self, gguf_name: str) -> bool:
        """Whether the file has a tensor of this name of its own."""
        return gguf_name in self._tensors

    def read(self, name: str) -> Tensor:
        """Dequantise one tensor."""
        gguf_name = _gguf_name(name)
        values = torch.from_numpy(self.read_raw(gguf_name))
        is_q_or_k = ".attn_q." in gguf_name or ".attn_k." in gguf_name
        return _unpermuted(values, self._head_size) if self._is_permuted and is_q_or_k else values

    def read_raw(self, gguf_name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Dequantise a tensor by the file's own name."""
        tensor = self._tensors.get(gguf_name)
        if tensor is None:
            raise CorruptModel(f"{self._path} has no tensor {gguf_name}.")
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self._path}: tensor {gguf_name} is of type {tensor.tensor_type.name}, "
                "which cannot be dequantised."
            ) from error
        return np.array(values, dtype=np.float32)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{kind}"
    index, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{_LAYER_NAMES[part]}.{kind}"


def _unpermuted(values: Tensor, head_size: int) -> Tensor:  # [heads * head_size, ...]
    """Bring the rows of each head from pairs (0, half), (1, half + 1) ... back to two halves.

    The converter for Llama reorders q and k for a rotation of neighbours; ours is of halves.
    """
    heads = values.shape[0] // head_size
    pairs = values.reshape(heads, head_size // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def _head_size(metadata: Metadata, family: str) -> int:
    hidden = metadata[f"{family}.embedding_length"]
    heads = metadata[f"{family}.attention.head_count"]
    return int(metadata.get(f"{family}.attention.key_length", hidden // heads))


def _config(metadata: Metadata, tensors: GgufTensors) -> ModelConfig:
    """Say what the metadata says in the words of `config.json`, which are checked there."""
    family = metadata["general.architecture"]
    # An unknown architecture has keys of its own: refuse it before any is missed.
    if family not in ("llama", "qwen2", "qwen3"):
        return from_hugging_face({"model_type": family})

    def key(name: str) -> Any:
        return metadata[f"{family}.{name}"]

    scaling = metadata.get(f"{family}.rope.scaling.type", "none")
    rope: dict[str, Any] = {
        "rope_theta": metadata.get(f"{family}.rope.freq_base", 10_000.0),
        "rope_type": "default" if scaling == "none" else scaling,
        "factor": metadata.get(f"{family}.rope.scaling.factor", 1.0),
    }
    vocab_size = metadata.get(f"{family}.vocab_size") or len(metadata["tokenizer.ggml.tokens"])
    config = from_hugging_face(
        {
            "model_type": family,
            "num_hidden_layers": key("block_count"),
            "hidden_size": key("embedding_length"),
            "intermediate_size": key("feed_forward_length"),
            "num_attention_heads": key("attention.head_count"),
            "num_key_value_heads": key("attention.head_count_kv"),
            "head_dim": _head_size(metadata, family),
            "vocab_size": vocab_size,
            "max_position_embeddings": key("context_length"),
            "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
            "rope_parameters": rope,
            # The converter writes a head only where it is not the embedding.
            "tie_word_embeddings": not tensors.has("output.weight"),
        }
    )
    if not tensors.has("rope_freqs.weight"):
        return config
    divisors = tuple(tensors.read_raw("rope_freqs.weight").tolist())
    return dataclasses.replace(config, rope=dataclasses.replace(config.rope, divisors=divisors))
