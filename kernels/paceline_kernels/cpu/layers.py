"""Every layer of a decoder in one call of the compiled library (decoder.c)."""

from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.cpu.block_matmul import PackedBlocks
from paceline_kernels.cpu.library import GATES, Gate, PackedWeight, address, addresses, require

_EVERY_KEY = 1 << 62
_OF_BLOCKS = -1
_NORMS = ("qkv_norm", "q_norm", "k_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")
PARTS = (
    "norms",
    "qkv",
    "rotation",
    "decode attention",
    "prompt attention",
    "out",
    "gate and up",
    "down",
)
"""The parts into which decoder.c splits a step's time."""
_PRODUCTS = ("qkv", "out", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class LayerProduct:
    """A product of a layer, with the gate behind it where there is one."""

    weight: PackedWeight | PackedBlocks
    bias: Tensor | None = None  # float32 [outputs]
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's weights and its part of the KV cache; norms are all float32, or all as the rows."""

    qkv_norm: Tensor  # [hidden]
    qkv: LayerProduct
    q_norm: Tensor | None  # [head_size]
    k_norm: Tensor | None  # [head_size]
    out: LayerProduct
    attention_post_norm: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [hidden]
    gate_up: LayerProduct
    down: LayerProduct
    mlp_post_norm: Tensor | None  # [hidden]
    k_cache: Tensor
    v_cache: Tensor
    exponents: Exponents
    cos_sin: Tensor  # [max_len, head_size]
    window: int | None

    @property
    def norms(self) -> list[Tensor]:
        """List the norms that there are."""
        found = [getattr(self, name) for name in _NORMS]
        return [norm for norm in found if norm is not None]

    @property
    def products(self) -> tuple[LayerProduct, ...]:
        """List the products."""
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class LayersShape:
    """What the layers of one decoder have in common."""

    hidden: int
    mlp: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    eps: float
    score_scale: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class LayersStep:
    """T tokens of S sequences, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    block_table: Tensor  # int32 [S, P]
    bounds: Tensor  # int32 [S + 1]
    context_lens: Tensor  # int32 [S]


class _Product(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("kind", c_int32),
        ("how", c_int32),
        ("panels", c_void_p),
        ("num_panels", c_int64),
    )


class _Layer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in _NORMS),
        *((name, _Product) for name in _PRODUCTS),
        *((name, c_void_p) for name in ("k_cache", "v_cache", "k_exponents", "v_exponents")),
        ("cos_sin", c_void_p),
        ("window", c_int64),
    )


class _Decoder(Structure):
    _fields_ = (
        ("layers", POINTER(_Layer)),
        *(
            (name, c_int64)
            for name in ("num_layers", "hidden", "mlp", "q_heads", "kv_heads", "head", "block_size")
        ),
        ("norm", c_void_p),
        ("eps", c_float),
        ("score_scale", c_float),
        *((name, c_int32) for name in ("is_bf16", "has_wide_norms", "threads", "unused")),
    )


class _Step(Structure):
    _fields_ = (
        *(
            (name, c_int64)
            for name in ("tokens", "sequences", "decodes", "table_stride", "num_kept")
        ),
        *(
            (name, c_void_p)
            for name in (
                "positions",
                "slots",
                "block_table",
                "bounds",
                "lengths",
                "kept_rows",
                "residual",
                "x",
                "normed",
                "qkv",
                "attended",
                "gated",
                "hidden",
                "seconds",
            )
        ),
    )


class NativeLayers:
    """The layers of one decoder, and the norm behind them."""

    def __init__(
        self, library: CDLL, shape: LayersShape, layers: Sequence[Layer], norm: Tensor
    ) -> None:
        """Check every tensor once. Raises ValueError for what the compiled layers cannot read."""
        self._shape = shape
        self._held = (tuple(layers), norm)  # C reads their memory
        _require_layers(shape, layers, norm)
        self._layers = (_Layer * len(layers))(*map(_layer, layers))
        self._decoder = _Decoder(
            layers=self._layers,
            num_layers=len(layers),
            hidden=shape.hidden,
            mlp=shape.mlp,
            q_heads=shape.num_q_heads,
            kv_heads=shape.num_kv_heads,
            head=shape.head_size,
            block_size=shape.block_size,
            norm=address(norm),
            eps=shape.eps,
            score_scale=shape.score_scale,
            is_bf16=shape.dtype == torch.bfloat16,
            has_wide_norms=norm.dtype == torch.float32,
        )
        self._run = library.run_layers
        self._run.argtypes = [POINTER(_Decoder), POINTER(_Step)]
        self._run.restype = c_int
        self.profile: Tensor | None = None
        """float64 [PARTS]: the seconds of every step are added by part, where there is one."""
        self._room = torch.empty(0, dtype=shape.dtype)

    def __call__(
        self,
        residual: Tensor,  # [T, hidden]: embeddings; written over
        step: LayersStep,
        kept_rows: Tensor | None = None,  # int64 [kept], ascending: all where None
    ) -> Tensor:  # [kept, hidden]
        """Return the normed states of the kept tokens; the keys and values of all are stored."""
        shape, tokens = self._shape, len(residual)
        sequences, columns = step.block_table.shape
        require("residual", residual, (tokens, shape.hidden), shape.dtype)
        require("positions", step.positions, (tokens,), torch.int64)
        require("slots", step.slots, (tokens,), torch.int64)
        require("block_table", step.block_table, (sequences, columns), torch.int32)
        require("bounds", step.bounds, (sequences + 1,), torch.int32)
        require("context_lens", step.context_lens, (sequences,), torch.int32)
        kept = tokens if kept_rows is None else len(kept_rows)
        if kept_rows is not None:
            require("kept_rows", kept_rows, (kept,), torch.int64)
        hidden = residual.new_empty(kept, shape.hidden)
        q_size = shape.num_q_heads * shape.head_size
        qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_size
        x, normed, qkv, attended, gated = self._buffers(
            tokens, (shape.hidden, shape.hidden, qkv_size, q_size, shape.mlp)
        )
        self._decoder.threads = torch.get_num_threads()
        failed = self._run(
            self._decoder,
            _Step(
                tokens,
                sequences,
                step.num_decodes,
                columns,
                kept,
                address(step.positions),
                address(step.slots),
                address(step.block_table),
                address(step.bounds),
                address(step.context_lens),
                address(kept_rows),
                address(residual),
                x,
                normed,
                qkv,
                attended,
                gated,
                address(hidden),
                address(self.profile),
            ),
        )
        if failed:
            raise MemoryError("no memory for a step of the decoder")
        return hidden

    def _buffers(self, tokens: int, widths: Sequence[int]) -> list[int]:
        """Return the addresses of [tokens, width] each; memory is kept for the next step."""
        if self._room.numel() < tokens * sum(widths):
            self._room = self._room.new_empty(tokens * sum(widths))
        at, found = self._room.data_ptr(), []
        for width in widths:
            found.append(at)
            at += tokens * width * self._room.element_size()
        return found


def _layer(layer: Layer) -> _Layer:
    keys, values = addresses(layer.exponents)
    made: dict[str, Any] = {name: address(getattr(layer, name)) for name in _NORMS}
    made |= {name: _product(getattr(layer, name)) for name in _PRODUCTS}
    return _Layer(
        **made,
        k_cache=address(layer.k_cache),
        v_cache=address(layer.v_cache),
        k_exponents=keys,
        v_exponents=values,
        cos_sin=address(layer.cos_sin),
        window=layer.window or _EVERY_KEY,
    )


def _product(product: LayerProduct) -> _Product:
    weight = product.weight
    made = _Product(
        bias=address(product.bias),
        outputs=weight.outputs,
        inputs=weight.inputs,
        how=0 if product.gate is None else GATES[product.gate],
    )
    if isinstance(weight, PackedBlocks):
        made.packed, made.kind = address(weight.packed), _OF_BLOCKS
        made.panels, made.num_panels = address(weight.panels), len(weight.panels)
    else:
        made.packed, made.kind = address(weight.panels), weight.kind
        made.scales = address(weight.scales)
    return made


def _require_layers(shape: LayersShape, layers: Sequence[Layer], norm: Tensor) -> None:
    q_size = shape.num_q_heads * shape.head_size
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_size
    sizes = {
        "qkv": (qkv_size, shape.hidden),
        "out": (shape.hidden, q_size),
        "gate_up": (2 * shape.mlp, shape.hidden),
        "down": (shape.hidden, shape.mlp),
    }
    require("norm", norm, (shape.hidden,), norm.dtype)
    for layer in layers:
        for name in _NORMS:
            one = getattr(layer, name)
            if one is not None:
                size = shape.head_size if name in ("q_norm", "k_norm") else shape.hidden
                require(name, one, (size,), norm.dtype)
        for name, (outputs, inputs) in sizes.items():
            product: LayerProduct = getattr(layer, name)
            weight = product.weight
            if (weight.outputs, weight.inputs) != (outputs, inputs):
                raise ValueError(
                    f"{name} must be [{outputs}, {inputs}], got [{weight.outputs}, {weight.inputs}]"
                )
            if not weight.takes(shape.dtype):
                raise ValueError(f"{name} does not take rows of {shape.dtype}")
            if weight.is_gated != (product.gate is not None) or weight.is_gated != (
                name == "gate_up"
            ):
                raise ValueError(f"{name} must {'' if name == 'gate_up' else 'not '}be gated")
            if product.bias is not None:
                require(f"the bias of {name}", product.bias, (outputs,))
        require("cos_sin", layer.cos_sin, (len(layer.cos_sin), shape.head_size))
