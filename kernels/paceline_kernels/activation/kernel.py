"""The gates of an MLP in Triton, and their launchers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.tuned import blocks_of


@triton.jit
def _gate_mul_kernel(x_ptr, out_ptr, features, BLOCK: tl.constexpr, IS_GELU: tl.constexpr):
    """Compute gate * sigmoid(s) * up for BLOCK columns of a row.

    SiLU has s = gate. GELU's tanh approximation, 0.5 * gate * (1 + tanh(t)), is the same with
    s = 2 * t, and t = sqrt(2 / pi) * (gate + 0.044715 * gate ** 3).
    """
    row = tl.program_id(0).to(tl.int64)  # int64: row * features overflows int32 on long batches
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < features
    gate_ptr = x_ptr + row * 2 * features
    dtype = out_ptr.dtype.element_ty

    gate = tl.load(gate_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + features + columns, mask=inside, other=0.0).to(tl.float32)
    steepness = gate
    if IS_GELU:
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    gated = (gate * tl.sigmoid(steepness)).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * features + columns, (gated * up).to(dtype), mask=inside)


def silu_mul(x: Tensor) -> Tensor:
    """Launch over [tokens, 2 * features]."""
    return _launch(x, is_gelu=False)


def gelu_tanh_mul(x: Tensor) -> Tensor:
    """Launch over [tokens, 2 * features]."""
    return _launch(x, is_gelu=True)


def _launch(x: Tensor, *, is_gelu: bool) -> Tensor:
    expect("x", x, shape=("tokens", "2 * features"), dtypes=FLOATS, like=x)
    num_tokens, width = x.shape
    if width % 2:
        raise ValueError(f"x must have an even number of columns, gate then up, got {width}")
    features = width // 2
    out = torch.empty((num_tokens, features), dtype=x.dtype, device=x.device)
    blocks = blocks_of("gate_mul", x.device)
    columns = blocks["columns"]
    _gate_mul_kernel[num_tokens, triton.cdiv(features, columns)](
        x,
        out,
        features,
        BLOCK=columns,
        IS_GELU=is_gelu,
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
    return out
