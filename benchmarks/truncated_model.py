"""Make a model of a model's first layers: a draft model where no smaller one is known.

Nothing was trained after the cut, so it drafts poorly with few layers, and it is slow with
many. It shows what drafting costs where it does not pay, not what a real draft model brings.
"""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import Checkpoint

_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def write_first_layers(checkpoint: Checkpoint, num_layers: int, folder: Path) -> None:
    """Write a Hugging Face folder of the embedding, `num_layers` layers, the norm and the head.

    Raises `ValueError` for a family other than Llama, or for more layers than the model has.
    """
    config = checkpoint.config
    if config.family != "llama" or not config.tied_head:
        raise ValueError(f"the model must be a Llama with a tied head, got {config.family}")
    if not 1 <= num_layers <= config.num_layers:
        raise ValueError(f"num_layers must be in [1, {config.num_layers}], got {num_layers}")
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{n}.{part}.weight" for n in range(num_layers) for part in _LAYER]
    tensors: dict[str, Tensor] = {
        name: checkpoint.tensors.read(name).float().contiguous() for name in names
    }
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
