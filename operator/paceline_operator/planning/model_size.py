"""How large a decoder is: parameters, weight bytes, KV bytes per token.

Read from the words of a `config.json`; a GGUF header says the same in its own words. The engine
reads them too, and refuses more: tests/seams holds both to the same sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What the hub's configs of Gemma leave out; GGUF files say it all.
_GEMMA = {
    "vocab_size": 256_000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA3 = _GEMMA | {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
_DEFAULTS: dict[object, dict[str, Any]] = {"gemma2": _GEMMA, "gemma3": _GEMMA3}


class ModelSizeError(ValueError):
    """The sizes are not there; the message names the field."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model in memory."""

    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    """Keys and values of one token in all layers."""
    bytes_per_value: int
    step_bytes_per_token: int | None = None
    """What one token of a step takes at its widest moment, in the MLP; None where unknown."""
    max_len: int | None = None
    """Longest sequence, in tokens; None where unknown."""
    kv_arithmetic: str = ""
    """How the KV bytes come about, for a person."""


def from_config(config: Mapping[str, Any], bytes_per_value: int) -> ModelSize:
    """Read the contents of a `config.json`. Raises ModelSizeError."""
    family = config.get("model_type")
    if isinstance(config.get("text_config"), Mapping):  # Gemma 3 for text and images
        config = config["text_config"]
    family = "gemma3" if family == "gemma3_text" else family
    config = {**_DEFAULTS.get(family, {}), **config}
    hidden = _count(config, "hidden_size")
    layers = _count(config, "num_hidden_layers")
    heads = _count(config, "num_attention_heads")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    intermediate = _count(config, "intermediate_size")

    qkv = (heads + 2 * kv_heads) * head_size
    attention = hidden * (qkv + heads * head_size)
    attention += qkv * (family == "qwen2") + 2 * head_size * (family in ("qwen3", "gemma3"))
    norms = 4 if family in ("gemma2", "gemma3") else 2
    layer = attention + 3 * hidden * intermediate + norms * hidden
    ends = _count(config, "vocab_size") * hidden
    ends *= 1 if config.get("tie_word_embeddings", False) else 2
    parameters = layers * layer + ends + hidden
    return ModelSize(
        num_parameters=parameters,
        weight_bytes=parameters * bytes_per_value,
        kv_bytes_per_token=2 * layers * kv_heads * head_size * bytes_per_value,
        bytes_per_value=bytes_per_value,
        step_bytes_per_token=3 * (hidden + intermediate) * bytes_per_value,
        max_len=_count(config, "max_position_embeddings"),
        kv_arithmetic=(
            f"2 (K, V) x {layers} layers x {kv_heads} KV heads x {head_size} x {bytes_per_value} B"
        ),
    )


def from_gguf(metadata: Mapping[str, Any], *, has_head: bool, bytes_per_value: int) -> ModelSize:
    """Read a GGUF file's metadata; `has_head`: it holds an output head of its own."""
    family = metadata.get("general.architecture")
    if not isinstance(family, str):
        raise ModelSizeError("general.architecture is missing")

    def get(name: str) -> Any:
        return metadata.get(f"{family}.{name}")

    config = {
        "model_type": family,
        "num_hidden_layers": get("block_count"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "vocab_size": get("vocab_size") or metadata.get("tokenizer.ggml.tokens"),
        "max_position_embeddings": get("context_length"),
        "tie_word_embeddings": not has_head,
    }
    return from_config(config, bytes_per_value)


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise ModelSizeError(f"{field} must be a positive integer, got {value!r}")
    return value
