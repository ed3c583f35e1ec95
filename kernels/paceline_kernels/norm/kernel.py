"""RMSNorm in Triton, and its launchers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.fp8 import CODES
from paceline_kernels.fp8.kernel import encode
from paceline_kernels.fp8_rows.kernel import scales_of, size_bits
from paceline_kernels.prepared import Call, Calls, looks
from paceline_kernels.tuned import blocks_of

MAX_HIDDEN = 16384  # a row is one tile: past this its registers spill
_CALLS = Calls()


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,  # None: there is nothing to add
    weight_ptr,
    normed_ptr,
    scales_ptr,  # None: normed in x's own type; else in FP8, as bytes
    sum_ptr,
    hidden,
    eps,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Normalise a row: weight * s / sqrt(mean(s * s) + eps), with s = x + residual."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: row * hidden overflows int32 on long batches
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    offsets = row * hidden + columns
    dtype = x_ptr.dtype.element_ty

    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(dtype)
        tl.store(sum_ptr + offsets, rounded, mask=inside)
        x = rounded.to(tl.float32)  # the norm of what the next layer reads, not of what it was

    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    normed = (x * inverse_rms).to(weight.dtype).to(tl.float32)
    weight = weight.to(tl.float32)
    normed = (normed * weight).to(dtype)
    if scales_ptr is None:
        tl.store(normed_ptr + offsets, normed, mask=inside)
    else:
        # Codes of what is rounded already, so that they are those of both kernels in turn.
        normed = normed.to(tl.float32)
        inverse, scale = scales_of(tl.max(size_bits(normed), axis=0))
        tl.store(normed_ptr + offsets, encode(normed * inverse), mask=inside)
        tl.store(scales_ptr + row, scale)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launch over [tokens, hidden]."""
    call = _call(x, weight)
    normed = torch.empty_like(x)
    call((x, None, weight, normed, None, None), x.shape[1], eps)
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Launch over [tokens, hidden] and a residual of the same shape."""
    call = _call(x, weight, residual)
    normed, new_residual = torch.empty_like(x), torch.empty_like(x)
    call((x, residual, weight, normed, None, new_residual), x.shape[1], eps)
    return normed, new_residual


def add_rms_norm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch over [tokens, hidden] and a residual of the same shape; the norm leaves as codes."""
    call = _call(x, weight, residual, written="fp8")
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
    new_residual = torch.empty_like(x)
    call((x, residual, weight, codes, scales, new_residual), x.shape[1], eps)
    return codes.view(CODES), scales, new_residual


def _call(x: Tensor, weight: Tensor, residual: Tensor | None = None, written: str = "own") -> Call:
    """Find how tensors that look like these are launched over, or check them and work it out."""
    key = _CALLS.key(looks(x), looks(weight), looks(residual), written)
    known = _CALLS.get(key)
    if known is not None:
        return known
    expect("x", x, shape=("tokens", "hidden"), dtypes=FLOATS, like=x)
    num_tokens, hidden = x.shape
    expect("weight", weight, shape=(hidden,), dtypes=(x.dtype, torch.float32), like=x)
    if hidden > MAX_HIDDEN:
        raise ValueError(f"hidden must be at most {MAX_HIDDEN}, got {hidden}")
    if residual is not None:
        expect("residual", residual, shape=x.shape, dtypes=(x.dtype,), like=x)
    block = triton.next_power_of_2(hidden)
    blocks = blocks_of("rms_norm", x.device, columns=block, out=written)
    call = Call(
        _rms_norm_kernel,
        (num_tokens,),
        BLOCK=block,
        **dependent(x.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
    return _CALLS.keep(key, call)
