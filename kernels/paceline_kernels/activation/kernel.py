"""The gates of an MLP in Triton, and their launchers."""

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

_CALLS = Calls()
_WIDEST_CLASS = 32768  # of columns: rows beyond it go block by block as well


@triton.jit
def _gated(gate_ptr, columns, features, IS_GELU: tl.constexpr):
    """Compute gate * sigmoid(s) * up for some columns of a row, rounded to its type.

    SiLU has s = gate. GELU's tanh approximation, 0.5 * gate * (1 + tanh(t)), is the same with
    s = 2 * t, and t = sqrt(2 / pi) * (gate + 0.044715 * gate ** 3).
    """
    inside = columns < features
    dtype = gate_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + features + columns, mask=inside, other=0.0).to(tl.float32)
    steepness = gate
    if IS_GELU:
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    gated = (gate * tl.sigmoid(steepness)).to(dtype).to(tl.float32)
    return (gated * up).to(dtype)


@triton.jit
def _gate_mul_kernel(
    x_ptr,
    out_ptr,
    features,
    BLOCK: tl.constexpr,
    IS_GELU: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Gate BLOCK columns of a row."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: row * features overflows int32 on long batches
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    out = _gated(x_ptr + row * 2 * features, columns, features, IS_GELU)
    tl.store(out_ptr + row * features + columns, out, mask=columns < features)


@triton.jit
def _gate_mul_fp8_kernel(
    x_ptr,
    codes_ptr,  # as bytes
    scales_ptr,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_GELU: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Gate a row to find its largest value, then once more to make codes of it.

    A row of one block is read and gated once: nothing is written in between, so both become one.
    """
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: row * features overflows int32 on long batches
    gate_ptr = x_ptr + row * 2 * FEATURES
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, FEATURES, BLOCK):
        out = _gated(gate_ptr, start + columns, FEATURES, IS_GELU)
        largest = tl.maximum(largest, size_bits(out.to(tl.float32)))
    inverse, scale = scales_of(tl.max(largest, axis=0))
    for start in range(0, FEATURES, BLOCK):
        out = _gated(gate_ptr, start + columns, FEATURES, IS_GELU)
        code = encode(out.to(tl.float32) * inverse)
        inside = start + columns < FEATURES
        tl.store(codes_ptr + row * FEATURES + start + columns, code, mask=inside)
    tl.store(scales_ptr + row, scale)


def silu_mul(x: Tensor) -> Tensor:
    """Launch over [tokens, 2 * features]."""
    return _launch(x, is_gelu=False)


def gelu_tanh_mul(x: Tensor) -> Tensor:
    """Launch over [tokens, 2 * features]."""
    return _launch(x, is_gelu=True)


def silu_mul_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Launch over [tokens, 2 * features], a program a row."""
    return _launch_fp8(x, is_gelu=False)


def gelu_tanh_mul_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Launch over [tokens, 2 * features], a program a row."""
    return _launch_fp8(x, is_gelu=True)


def _launch(x: Tensor, *, is_gelu: bool) -> Tensor:
    key = _CALLS.key(looks(x), is_gelu)
    call = _CALLS.get(key) or _CALLS.keep(key, _checked(x, is_gelu=is_gelu))
    features = x.shape[1] // 2
    out = torch.empty((len(x), features), dtype=x.dtype, device=x.device)
    call((x, out), features)
    return out


def _checked(x: Tensor, *, is_gelu: bool) -> Call:
    num_tokens, features = _sizes(x)
    blocks = blocks_of("gate_mul", x.device)
    columns = blocks["columns"]
    return Call(
        _gate_mul_kernel,
        (num_tokens, triton.cdiv(features, columns)),
        BLOCK=columns,
        IS_GELU=is_gelu,
        **dependent(x.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )


def _launch_fp8(x: Tensor, *, is_gelu: bool) -> tuple[Tensor, Tensor]:
    num_tokens, features = _sizes(x)
    codes = torch.empty((num_tokens, features), dtype=torch.uint8, device=x.device)
    scales = torch.empty(num_tokens, dtype=torch.float32, device=x.device)
    columns = triton.next_power_of_2(features)
    blocks = blocks_of("gate_mul_fp8", x.device, columns=min(columns, _WIDEST_CLASS))
    _gate_mul_fp8_kernel[(num_tokens,)](
        x,
        codes,
        scales,
        FEATURES=features,
        BLOCK=min(blocks["columns"], columns),
        IS_GELU=is_gelu,
        **dependent(x.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
    return codes.view(CODES), scales


def _sizes(x: Tensor) -> tuple[int, int]:
    """Tokens and features of [tokens, 2 * features]."""
    expect("x", x, shape=("tokens", "2 * features"), dtypes=FLOATS, like=x)
    num_tokens, width = x.shape
    if width % 2:
        raise ValueError(f"x must have an even number of columns, gate then up, got {width}")
    return num_tokens, width // 2
