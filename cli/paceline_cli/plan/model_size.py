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


class RanksDoNotDivide(Exception):  # noqa: N818 - it says what they do
    """So many ranks cannot share the model; the message names the rule."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How the engine keeps a model's numbers."""

    bytes_per_value: int
    """Of what it computes with: weights, keys and values are kept so unless said otherwise."""
    quantization: str = ""
    """INT8 or FP8: a byte for each weight of the layers' products, a float32 for each output."""
    has_fp8_kv: bool = False
    """Keys and values take a byte each, and one for each head of a token."""

    @property
    def kv_value_bytes(self) -> int:
        """Of one key or value."""
        return 1 if self.has_fp8_kv else self.bytes_per_value


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model in memory."""

    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    """Keys and values of one token in all layers."""
    precision: Precision
    step_bytes_per_token: int | None = None
    """What one token of a step takes at its widest moment, in the MLP; None where unknown."""
    max_len: int | None = None
    """Longest sequence, in tokens; None where unknown."""
    kv_arithmetic: str = ""
    """How the KV bytes come about, for a person."""
    weight_arithmetic: str = ""
    """How the weights' bytes do."""
    hidden_size: int | None = None
    num_layers: int | None = None


def from_config(config: Mapping[str, Any], precision: Precision, *, ranks: int = 1) -> ModelSize:
    """Read the contents of a `config.json`; of several ranks, the part that each of them holds.

    Ranks share heads and features of the MLP; embedding, norms and head are whole in each.
    Raises ModelSizeError, and RanksDoNotDivide.
    """
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
    heads, kv_heads = _share("attention heads", heads, ranks), _share("KV heads", kv_heads, ranks)
    intermediate = _share("features of the MLP", intermediate, ranks)

    qkv = (heads + 2 * kv_heads) * head_size
    attention = hidden * (qkv + heads * head_size)
    attention += qkv * (family == "qwen2") + 2 * head_size * (family in ("qwen3", "gemma3"))
    norms = 4 if family in ("gemma2", "gemma3") else 2
    layer = attention + 3 * hidden * intermediate + norms * hidden
    ends = _count(config, "vocab_size") * hidden
    ends *= 1 if config.get("tie_word_embeddings", False) else 2
    parameters = layers * layer + ends + hidden
    products = layers * hidden * (qkv + heads * head_size + 3 * intermediate)
    outputs = layers * (qkv + 2 * hidden + 2 * intermediate)
    weight_bytes, weight_arithmetic = shown_weights(parameters, products, outputs, precision)
    head = f"{head_size} x {precision.bytes_per_value} B"
    if precision.has_fp8_kv:
        head = f"({head_size} + 1) B"
    head_bytes = head_size * precision.kv_value_bytes + precision.has_fp8_kv
    return ModelSize(
        num_parameters=parameters,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=2 * layers * kv_heads * head_bytes,
        precision=precision,
        step_bytes_per_token=3 * (hidden + intermediate) * precision.bytes_per_value,
        max_len=_count(config, "max_position_embeddings"),
        kv_arithmetic=f"2 (K, V) x {layers} layers x {kv_heads} KV heads x {head}",
        weight_arithmetic=weight_arithmetic,
        hidden_size=hidden,
        num_layers=layers,
    )


def shown_weights(
    parameters: int, products: int, outputs: int, precision: Precision
) -> tuple[int, str]:
    """Tell their bytes, and how they come about; embedding and head are never quantised."""
    bytes_per_value = precision.bytes_per_value
    if not precision.quantization:
        return parameters * bytes_per_value, f"{parameters:,} parameters x {bytes_per_value} B"
    rest = parameters - products
    scales = f"{products:,} in {precision.quantization} + {outputs:,} scales x 4 B"
    words = f"{scales} + {rest:,} x {bytes_per_value} B"
    return products + 4 * outputs + rest * bytes_per_value, words


def from_gguf(
    metadata: Mapping[str, Any], *, has_head: bool, precision: Precision, ranks: int = 1
) -> ModelSize:
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
    return from_config(config, precision, ranks=ranks)


def _share(name: str, count: int, ranks: int) -> int:
    if count % ranks:
        raise RanksDoNotDivide(f"must divide the model's {count} {name}, got {ranks}")
    return count // ranks


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise ModelSizeError(f"{field} must be a positive integer, got {value!r}")
    return value
