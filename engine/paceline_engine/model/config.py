"""What a decoder is made of, read from `config.json` and checked.

The families differ in three switches only: Qwen2 has biases on q, k and v; Qwen3 norms each head
of q and k; Llama has neither. All else is sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline_engine.errors import CorruptModel, UnsupportedModel

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn q and k."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """Longer contexts by this factor (linear and llama3)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192
    """Context of the pre-training (llama3)."""
    divisors: tuple[float, ...] = ()
    """Each frequency is divided by its own; empty where the file brings none."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes and switches of one decoder."""

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_len: int
    norm_eps: float
    rope: Rope
    tied_head: bool
    """The output head is the embedding."""
    qkv_bias: bool
    qk_norm: bool

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other."""
        if self.num_q_heads % self.num_kv_heads:
            raise CorruptModel(
                "The model's config: num_attention_heads must be a multiple of "
                f"num_key_value_heads, got {self.num_q_heads} and {self.num_kv_heads}."
            )
        if self.head_size % 2:
            raise CorruptModel(f"The model's config: head_dim must be even, got {self.head_size}.")

    @property
    def qkv_size(self) -> int:
        """Width of the fused q, k and v of one token."""
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def num_parameters(self) -> int:
        """Weights, a tied head counted once."""
        attention = self.hidden_size * (self.qkv_size + self.num_q_heads * self.head_size)
        attention += self.qkv_size * self.qkv_bias + 2 * self.head_size * self.qk_norm
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        ends = self.vocab_size * self.hidden_size * (1 if self.tied_head else 2)
        return self.num_layers * layer + ends + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Memory that the keys and values of one token take in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_value


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read the contents of a `config.json`."""
    family = _family(config.get("model_type"))
    _refuse_variants(config)
    num_q_heads = _count(config, "num_attention_heads")
    hidden_size = _count(config, "hidden_size")
    head_size = config.get("head_dim") or hidden_size // num_q_heads
    return ModelConfig(
        family=family,
        num_layers=_count(config, "num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=_count(config, "intermediate_size"),
        num_q_heads=num_q_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_q_heads),
        head_size=int(head_size),
        vocab_size=_count(config, "vocab_size"),
        max_len=_count(config, "max_position_embeddings"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )


def _family(model_type: object) -> Family:
    for family in FAMILIES:
        if model_type == family:
            return family
    raise UnsupportedModel(
        f"The model's architecture is {model_type!r}; the engine runs {', '.join(FAMILIES)}."
    )


def _refuse_variants(config: Mapping[str, Any]) -> None:
    """Refuse switches of the same families that would give wrong output if they were ignored."""
    plain = {
        "hidden_act": ("silu", "silu"),
        "use_sliding_window": (False, False),
        "mlp_bias": (False, False),
        "attention_bias": (False, False),
        "quantization_config": (None, None),
    }
    for field, (absent, wanted) in plain.items():
        value = config.get(field, absent)
        if value != wanted:
            raise UnsupportedModel(
                f"The model's config has {field}={value!r}; the engine runs only {wanted!r}."
            )


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise CorruptModel(
            f"The model's config.json: {field} must be a positive integer, got {value!r}."
        )
    return value


def _rope(config: Mapping[str, Any]) -> Rope:
    """`rope_parameters` holds theta and scaling; before it there were two fields."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta", config.get("rope_theta", 10_000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", factor=float(scaling["factor"]))
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_len=int(scaling["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(
        f"The model's rope scaling is {kind!r}; the engine runs default, linear and llama3."
    )
