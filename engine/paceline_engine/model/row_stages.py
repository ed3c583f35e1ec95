"""Stages of a decoder for a few decodes: products with norm, gate and residual inside.

Only what lies in one place is fused: weights that nothing quantised, of one rank, without adapters
in the step. Families that norm an addend before it joins keep the norm, and fuse the gate alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from paceline_engine.model.decoder import Decoder, DecoderLayer, DecoderStages
from paceline_engine.model.layers.fused_ops import Mlp, Normed
from paceline_engine.model.layers.gated_linear import GatedLinear
from paceline_engine.model.layers.linear import PlainLinear
from paceline_engine.model.layers.lora_linear import LoraLinear
from paceline_kernels import add_row_product, row_product
from paceline_kernels.row_products import ARRIVALS, MAX_ROWS, Gate, RowNorm

Fusion = Literal["mlp", "qkv", "gate"]
"""What one launch fuses. mlp: o_proj + residual, and norm + gate_up + activation. qkv: down_proj +
residual, and norm + the next layer's qkv. gate: gate_up + activation alone."""
Fusions: TypeAlias = frozenset[Fusion]
PLANS: tuple[Fusions, ...] = (
    frozenset({"mlp", "qkv"}),
    frozenset({"gate", "qkv"}),
    frozenset({"mlp"}),
    frozenset({"qkv"}),
    frozenset({"gate"}),
)
"""What may be fused together, the most first."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """A layer's unquantised weights; None where a product is of another kind."""

    qkv: PlainLinear | None
    out: PlainLinear | None
    gate_up: PlainLinear | None
    down: PlainLinear | None

    def allows(self, fusion: Fusion, layer: DecoderLayer) -> bool:
        """Tell whether a layer has the form that is fused."""
        gates = self.gate_up is not None and self.gate_up.bias is None
        if fusion == "gate":
            return gates
        if fusion == "mlp":
            return gates and _adds(self.out) and layer.attention_post_norm is None
        return self.qkv is not None and _adds(self.down) and layer.mlp_post_norm is None


class RowStages:
    """Implements `DecoderStages` for up to 128 tokens and no adapters."""

    def __init__(self, decoder: Decoder, fusions: Fusions, arrived: Tensor) -> None:
        """`arrived`: see `row_product`."""
        self._decoder = decoder
        self._fusions = fusions
        self._arrived = arrived
        self._weights = tuple(map(_weights_of, decoder.layers))
        self._gate: Gate = "silu" if decoder.config.activation == "silu" else "gelu_tanh"

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        return self._decoder.first(token_ids)

    def between(self, index: int, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        gated, residual = self._gated(index, attended, residual)
        down, qkv = self._weights[index].down, self._weights[index + 1].qkv
        after = self._decoder.layers[index + 1].qkv
        if "qkv" not in self._fusions or down is None or qkv is None:
            return after(self._down(index, gated), residual)
        residual, squares = add_row_product(gated, down.weight, residual, arrived=self._arrived)
        norm = RowNorm(after.weight, squares, self._decoder.config.norm_eps)
        return row_product(residual, qkv.weight, qkv.bias, norm, arrived=self._arrived), residual

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """See `DecoderStages`."""
        decoder, last = self._decoder, len(self._weights) - 1
        gated, residual = self._gated(last, attended, residual)
        x = self._down(last, gated)
        return decoder.ops.add_rms_norm(x, residual, decoder.norm, decoder.config.norm_eps)[0]

    def _gated(self, index: int, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Go from attention's result to the gate's, and the residual stream."""
        decoder, arrived = self._decoder, self._arrived
        layer, weights, eps = decoder.layers[index], self._weights[index], decoder.config.norm_eps
        out, gate_up = weights.out, weights.gate_up
        if "mlp" in self._fusions and out is not None and gate_up is not None:
            residual, squares = add_row_product(attended, out.weight, residual, arrived=arrived)
            norm = RowNorm(layer.mlp.weight, squares, eps)
            gated = row_product(residual, gate_up.weight, None, norm, self._gate, arrived=arrived)
            return gated, residual
        x = layer.out(attended)
        if layer.attention_post_norm is not None:
            x = decoder.ops.rms_norm(x, layer.attention_post_norm, eps)
        normed, residual = decoder.ops.add_rms_norm(x, residual, layer.mlp.weight, eps)
        if "gate" in self._fusions and gate_up is not None:
            gated = row_product(normed, gate_up.weight, None, None, self._gate, arrived=arrived)
            return gated, residual
        return _mlp_of(layer).gated(normed), residual

    def _down(self, index: int, gated: Tensor) -> Tensor:
        layer, decoder = self._decoder.layers[index], self._decoder
        x = _mlp_of(layer).down(gated)
        if layer.mlp_post_norm is not None:
            x = decoder.ops.rms_norm(x, layer.mlp_post_norm, decoder.config.norm_eps)
        return x


@dataclass(frozen=True, slots=True)
class RowProducts:
    """The fused products, by the number of decodes in a step."""

    plans: Mapping[int, Fusions]
    """By the most rows that each serves; ascending. Nothing is fused where one is empty."""
    arrived: Tensor  # [ARRIVALS] int32, 0

    def __call__(self, decoder: Decoder, num_rows: int) -> DecoderStages | None:
        """Return the stages for a step of `num_rows`; None for the decoder's own."""
        plan = next((plan for most, plan in self.plans.items() if num_rows <= most), frozenset())
        return RowStages(decoder, plan, self.arrived) if plan else None


def possible_plans(decoder: Decoder) -> tuple[Fusions, ...]:
    """Return what all layers allow, the most first."""
    if not all(_is_plain_mlp(layer) for layer in decoder.layers):
        return ()
    weights = [(_weights_of(layer), layer) for layer in decoder.layers]
    return tuple(
        plan
        for plan in PLANS
        if all(each.allows(fusion, layer) for each, layer in weights for fusion in plan)
    )


def everything_fused(decoder: Decoder) -> RowProducts | None:
    """Fuse all that the layers allow, for each number of rows."""
    plans = possible_plans(decoder)
    return RowProducts({MAX_ROWS: plans[0]}, counters(decoder)) if plans else None


def counters(decoder: Decoder) -> Tensor:
    """Take the counters of one model's products."""
    return torch.zeros(ARRIVALS, dtype=torch.int32, device=decoder.embedding.device)


def _weights_of(layer: DecoderLayer) -> _Weights:
    mlp = _mlp_of(layer)
    gated = mlp.gated
    gate_up = gated.product if isinstance(gated, GatedLinear) else None
    return _Weights(
        qkv=_plain(layer.qkv.product) if isinstance(layer.qkv, Normed) else None,
        out=_plain(layer.out),
        gate_up=_plain(gate_up),
        down=_plain(mlp.down),
    )


def _is_plain_mlp(layer: DecoderLayer) -> bool:
    return isinstance(layer.mlp, Normed) and isinstance(layer.mlp.product, Mlp)


def _mlp_of(layer: DecoderLayer) -> "Mlp[Tensor, Tensor]":
    mlp = layer.mlp.product
    if not isinstance(mlp, Mlp):
        raise TypeError(f"only a plain MLP has parts, got {mlp}")
    return mlp


def _plain(product: object) -> PlainLinear | None:
    """Return the weight of a product; adapters add nothing in the steps that this serves."""
    base: object = product.base if isinstance(product, LoraLinear) else product
    return base if isinstance(base, PlainLinear) else None


def _adds(product: PlainLinear | None) -> bool:
    return product is not None and product.bias is None
