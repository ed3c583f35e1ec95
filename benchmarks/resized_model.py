"""Make a model of more or fewer layers out of a model: a small or a large one where none is known.

Nothing is trained. With fewer layers it is the first of them, which drafts poorly: it shows what
drafting costs where it does not pay. With more, those that are added compute as the others do and
add nothing, so the answers are the same and take longer: it shows what a larger model costs.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import Checkpoint

_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_ADDS_TO_STREAM = ("self_attn.o_proj", "mlp.down_proj")


def write_with_layers(checkpoint: Checkpoint, num_layers: int, folder: Path) -> None:
    """Write a Hugging Face folder of the embedding, `num_layers` layers, the norm and the head.

    Raises `ValueError` for a family other than Llama, and for no layer.
    """
    config = checkpoint.config
    if config.family != "llama" or not config.tied_head:
        raise ValueError(f"the model must be a Llama with a tied head, got {config.family}")
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    read = checkpoint.tensors.read
    tensors: dict[str, Tensor] = {
        name: read(name).float().contiguous()
        for name in ("model.embed_tokens.weight", "model.norm.weight")
    }
    for layer in range(num_layers):
        for part in _LAYER:
            tensor = read(f"model.layers.{layer % config.num_layers}.{part}.weight").float()
            if layer >= config.num_layers and part in _ADDS_TO_STREAM:
                tensor = torch.zeros_like(tensor)
            tensors[f"model.layers.{layer}.{part}.weight"] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "num_hidden_layers": num_layers,
                "hidden_size": config.hidden_size,
                "intermediate_size": config.intermediate_size,
                "num_attention_heads": config.num_q_heads,
                "num_key_value_heads": config.num_kv_heads,
                "head_dim": config.head_size,
                "vocab_size": config.vocab_size,
                "max_position_embeddings": config.max_len,
                "rms_norm_eps": config.norm_eps,
                "rope_theta": config.rope.theta,
                "tie_word_embeddings": True,
                "hidden_act": "silu",
                "bos_token_id": checkpoint.bos_token_id,
                "eos_token_id": list(checkpoint.eos_token_ids),
            }
        )
    )
    checkpoint.tokenizer.write(folder)
