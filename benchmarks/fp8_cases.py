"""Timing cases of the kernels that write FP8 codes for products; see `kernel_cases`.

Their references are not in float64: what is rounded to another code there would be no error.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernel_cases import NUM_EXPERTS, Case, Layer, Load, experts_work, routing_of
from paceline_engine.model.layers.fp8_rows import multiply, quantized
from paceline_kernels.activation import kernel as activation
from paceline_kernels.activation import reference_gelu_tanh_mul_fp8, reference_silu_mul_fp8
from paceline_kernels.fp8 import CODES
from paceline_kernels.fp8_rows import kernel as fp8_rows
from paceline_kernels.fp8_rows import reference_quantize_rows
from paceline_kernels.moe import kernel as moe
from paceline_kernels.moe import reference_fused_experts
from paceline_kernels.norm import kernel as norm
from paceline_kernels.norm import reference_add_rms_norm_fp8

_EXPERTS_COARSENESS = 2e-2
"""Rows are quantised twice, the second time what was rounded to their type in between."""
_COARSENESS = 1e-2
"""Between the 0.001 of some codes to either side, and the 0.015 of a column among 4,096."""


def fp8_cases_of(layer: Layer, load: Load) -> Iterator[Case]:
    """Yield every case in turn, so that only one's tensors exist at a time."""
    yield norm_fp8_case(layer, load.num_tokens)
    yield silu_fp8_case(layer, load.num_tokens)
    yield gelu_fp8_case(layer, load.num_tokens)
    yield rows_case(layer, load.num_tokens)
    yield experts_fp8_case(layer, load.num_tokens)
    yield experts_fp8_case(layer, load.num_tokens, is_dynamic=True)


def norm_fp8_case(layer: Layer, num_tokens: int) -> Case:
    """Two rows read; one row and another row's codes written."""
    x, residual = layer.randn(2, num_tokens, layer.model.hidden)
    weight = layer.randn(layer.model.hidden)
    return Case(
        layer.model.name,
        "add_rms_norm_fp8",
        f"{num_tokens} tokens",
        lambda: norm.add_rms_norm_fp8(x, residual, weight, 1e-5),
        lambda: reference_add_rms_norm_fp8(x, residual, weight, 1e-5),
        num_bytes=3 * x.nbytes + x.numel() + 4 * num_tokens + weight.nbytes,
        coarseness=_COARSENESS,
    )


def silu_fp8_case(layer: Layer, num_tokens: int) -> Case:
    """Two halves read, the codes of one written."""
    x = layer.randn(num_tokens, 2 * layer.model.features)
    return Case(
        layer.model.name,
        "silu_mul_fp8",
        f"{num_tokens} tokens",
        lambda: activation.silu_mul_fp8(x),
        lambda: reference_silu_mul_fp8(x),
        num_bytes=x.nbytes + x.numel() // 2 + 4 * num_tokens,
        coarseness=_COARSENESS,
    )


def gelu_fp8_case(layer: Layer, num_tokens: int) -> Case:
    """The other gate, with another activation."""
    x = layer.randn(num_tokens, 2 * layer.model.features)
    return Case(
        layer.model.name,
        "gelu_tanh_mul_fp8",
        f"{num_tokens} tokens",
        lambda: activation.gelu_tanh_mul_fp8(x),
        lambda: reference_gelu_tanh_mul_fp8(x),
        num_bytes=x.nbytes + x.numel() // 2 + 4 * num_tokens,
        coarseness=_COARSENESS,
    )


def experts_fp8_case(layer: Layer, num_tokens: int, *, is_dynamic: bool = False) -> Case:
    """Experts whose weights are in FP8, and dynamically what they are multiplied with."""
    model = layer.model
    x = layer.randn(num_tokens, model.hidden)
    gate_up, gate_up_scales = _weight_in_fp8(layer, 2 * model.features, model.hidden)
    down, down_scales = _weight_in_fp8(layer, model.hidden, model.features)
    told = (gate_up, down, *routing_of(num_tokens, layer.device), gate_up_scales, down_scales)
    return Case(
        model.name,
        "fused_experts",
        f"{num_tokens} tokens, {'FP8 with FP8' if is_dynamic else 'weights in FP8'}",
        lambda: moe.fused_experts(x, *told, is_dynamic=is_dynamic),
        lambda: reference_fused_experts(
            x.float() if is_dynamic else x.double(), *told, is_dynamic=is_dynamic
        ),
        **experts_work(layer, num_tokens, gate_up.nbytes + down.nbytes),
        coarseness=_EXPERTS_COARSENESS if is_dynamic else 0.0,
    )


def _weight_in_fp8(layer: Layer, num_out: int, num_in: int) -> tuple[Tensor, Tensor]:
    wide = torch.stack([64 * layer.randn(num_out, num_in) for _ in range(NUM_EXPERTS)])
    scales = (0.5 + torch.rand(NUM_EXPERTS, num_out, device=layer.device)) / (64 * num_in**0.5)
    return wide.clamp(-448, 448).to(CODES), scales


def rows_case(layer: Layer, num_tokens: int) -> Case:
    """A row read, its codes written."""
    x = layer.randn(num_tokens, layer.model.features)
    return Case(
        layer.model.name,
        "quantize_rows",
        f"{num_tokens} tokens",
        lambda: fp8_rows.quantize_rows(x),
        lambda: reference_quantize_rows(x),
        num_bytes=x.nbytes + x.numel() + 4 * num_tokens,
    )


def product_case(layer: Layer, num_tokens: int) -> Case:
    """Multiply codes with codes after the gate, by torch; its inputs are quantized already."""
    model = layer.model
    rows, weight = (
        quantized(layer.randn(size, model.features)) for size in (num_tokens, model.hidden)
    )
    num_outputs = num_tokens * model.hidden

    def exact() -> Tensor:
        x, w = (one.codes.double() * one.scales.double()[:, None] for one in (rows, weight))
        return x @ w.t()

    return Case(
        model.name,
        "fp8_product",
        f"{num_tokens} tokens",
        lambda: multiply(rows, weight.codes, weight.scales),
        exact,
        num_bytes=rows.codes.nbytes + weight.codes.nbytes + num_outputs * layer.dtype.itemsize,
        num_flops=2 * num_outputs * model.features,
    )
