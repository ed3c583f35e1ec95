"""The sizes of a decoder, and the switches in which the families differ.

`families.py` reads them from a `config.json`; nothing past it asks for a family by name.
"""

from dataclasses import dataclass
from typing import Literal

from paceline_engine.errors import CorruptModel

Activation = Literal["silu", "gelu_tanh"]


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

    family: str
    """Its name in `config.json`, for people; nothing is decided by it."""
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
    qkv_bias: bool = False
    qk_norm: bool = False
    """Each head of q and k is normed before its rotation."""
    attention_scale: float | None = None
    """Factor on the scores; `head_size ** -0.5` where None."""
    attention_softcap: float | None = None
    """Scores stay within this bound: `cap * tanh(score / cap)`."""
    logit_softcap: float | None = None
    """As `attention_softcap`, for the logits."""
    windows: tuple[int | None, ...] = ()
    """Per layer: keys that a token sees, itself included; all before it where None."""
    window_rope: Rope | None = None
    """Rotation of the layers with a window, where it is not `rope`."""
    activation: Activation = "silu"
    """The gate's activation."""
    post_norms: bool = False
    """What attention and the MLP give is normed before it joins the residual."""
    norm_offset: float = 0.0
    """Added to each norm's weight as the file has it."""
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other; say of each layer whether it has a window."""
        if self.num_q_heads % self.num_kv_heads:
            raise CorruptModel(
                "The model's config: num_attention_heads must be a multiple of "
                f"num_key_value_heads, got {self.num_q_heads} and {self.num_kv_heads}."
            )
        if self.head_size % 2:
            raise CorruptModel(f"The model's config: head_dim must be even, got {self.head_size}.")
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_layers)
        if len(self.windows) != self.num_layers:
            raise CorruptModel(
                f"The model's config: layer_types must name {self.num_layers} layers, "
                f"got {len(self.windows)}."
            )

    @property
    def qkv_size(self) -> int:
        """Return the width of one token's fused q, k and v."""
        return (self.num_q_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def score_scale(self) -> float:
        """Return what q times k is multiplied by."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def num_linear_parameters(self) -> int:
        """Count the weights of the layers' products, which quantisation makes smaller."""
        attention = self.qkv_size + self.num_q_heads * self.head_size
        return self.num_layers * self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def num_linear_outputs(self) -> int:
        """Count the rows of these weights, each of which has a scale of its own."""
        return self.num_layers * (self.qkv_size + 2 * self.hidden_size + 2 * self.intermediate_size)

    @property
    def num_parameters(self) -> int:
        """Count the weights, a tied head once."""
        attention = self.hidden_size * (self.qkv_size + self.num_q_heads * self.head_size)
        attention += self.qkv_size * self.qkv_bias + 2 * self.head_size * self.qk_norm
        norms = self.hidden_size * (4 if self.post_norms else 2)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + norms
        ends = self.vocab_size * self.hidden_size * (1 if self.tied_head else 2)
        return self.num_layers * layer + ends + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_value: int, bytes_per_head: int = 0) -> int:
        """Return what the keys and values of one token take in all layers.

        `bytes_per_head`: what is kept of a head beside its values. Layers with a window keep all
        keys too: one block table serves every layer.
        """
        head = self.head_size * bytes_per_value + bytes_per_head
        return 2 * self.num_layers * self.num_kv_heads * head
