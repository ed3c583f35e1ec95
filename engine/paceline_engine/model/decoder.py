"""The decoder of Llama, Qwen2 and Qwen3, from token ids to logits.

A residual stream runs through the layers; each adds to it what attention and then the MLP make of
its normed value. The sum is kept apart from the last addend, so that adding and norming is one op.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_engine.model.layers.linear import Linear


class Ops(Protocol):
    """The elementwise ops, as the device runs them best."""

    def rms_norm(self, x: Tensor, /, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension."""
        ...

    def add_rms_norm(
        self, x: Tensor, /, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`."""
        ...

    def silu_mul(self, x: Tensor, /) -> Tensor:
        """`silu(first half) * second half` of the last dimension."""
        ...


class Attention(Protocol):
    """One step's attention, over what the KV cache holds and what the step adds to it."""

    def attend(
        self,
        layer: int,
        qkv: Tensor,  # [tokens, qkv_size]
        q_norm: Tensor | None,  # [head_size]
        k_norm: Tensor | None,  # [head_size]
    ) -> Tensor:  # [tokens, num_q_heads * head_size]
        """Norm and rotate q and k, store k and v, attend to everything before each token."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear
    q_norm: Tensor | None  # [head_size]
    k_norm: Tensor | None  # [head_size]
    out: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """All weights, and the one way through them."""

    config: ModelConfig
    ops: Ops
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    norm: Tensor  # [hidden]
    head: Linear

    def hidden(self, token_ids: Tensor, attention: Attention) -> Tensor:  # [tokens, hidden]
        """Run every layer over the step's tokens; the normed state that the head reads."""
        ops, eps = self.ops, self.config.norm_eps
        residual = self.embedding[token_ids]
        x = ops.rms_norm(residual, self.layers[0].attention_norm, eps)
        norms_after = [layer.attention_norm for layer in self.layers[1:]] + [self.norm]
        for index, (layer, norm_after) in enumerate(zip(self.layers, norms_after, strict=True)):
            attended = attention.attend(index, layer.qkv(x), layer.q_norm, layer.k_norm)
            x, residual = ops.add_rms_norm(layer.out(attended), residual, layer.mlp_norm, eps)
            mlp = layer.down(ops.silu_mul(layer.gate_up(x)))
            x, residual = ops.add_rms_norm(mlp, residual, norm_after, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:  # [rows, hidden] -> [rows, vocab]
        """Score every token of the vocabulary."""
        return self.head(hidden)
