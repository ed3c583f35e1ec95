"""What a launcher refuses, and the sentence that it gives."""

import re

import pytest
import torch

from paceline_kernels.activation.kernel import silu_mul
from paceline_kernels.decode_attention.kernel import paged_decode_attention
from paceline_kernels.norm.kernel import add_rms_norm, rms_norm
from paceline_kernels.prefill_attention.kernel import paged_prefill_attention
from paceline_kernels.rotary.kernel import rope_and_store_kv


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


def ints(*sizes: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


CACHE = zeros(4, 16, 2, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda: rms_norm(zeros(8, 4).T, zeros(8), 1e-5),
            "x must be contiguous [tokens, hidden] float16 or bfloat16 or float32 on cpu, "
            "got [4, 8] float32 on cpu with strides [1, 4]",
            id="layout",
        ),
        pytest.param(
            lambda: rms_norm(zeros(2, 8), zeros(9), 1e-5),
            "weight must be contiguous [8] float32 on cpu, got [9] float32 on cpu",
            id="shape",
        ),
        pytest.param(
            lambda: rms_norm(zeros(2, 8), zeros(8, dtype=torch.float64), 1e-5),
            "weight must be contiguous [8] float32 on cpu, got [8] float64 on cpu",
            id="dtype",
        ),
        pytest.param(
            lambda: rms_norm(zeros(2, 8), torch.zeros(8, device="meta"), 1e-5),
            "weight must be contiguous [8] float32 on cpu, got [8] float32 on meta",
            id="device",
        ),
        pytest.param(
            lambda: rms_norm(zeros(1, 20000), zeros(20000), 1e-5),
            "hidden must be at most 16384, got 20000",
            id="hidden",
        ),
        pytest.param(
            lambda: add_rms_norm(zeros(2, 8), zeros(3, 8), zeros(8), 1e-5),
            "residual must be contiguous [2, 8]",
            id="residual",
        ),
        pytest.param(
            lambda: silu_mul(zeros(2, 7)),
            "x must have an even number of columns, gate then up, got 7",
            id="halves",
        ),
        pytest.param(
            lambda: paged_decode_attention(
                zeros(1, 4, 64), CACHE[0], CACHE[0], ints(1, 1), ints(1), 1.0
            ),
            "k_cache must be [blocks, block_size, num_kv_heads, head_size], got [16, 2, 64]",
            id="cache",
        ),
        pytest.param(
            lambda: paged_decode_attention(
                zeros(1, 4, 64), CACHE, CACHE[:3], ints(1, 1), ints(1), 1.0
            ),
            "v_cache must be [4, 16, 2, 64] as k_cache, got [3, 16, 2, 64]",
            id="caches",
        ),
        pytest.param(
            lambda: paged_decode_attention(
                zeros(1, 4, 64), CACHE, zeros(4, 2, 16, 2, 64)[:, 0], ints(1, 1), ints(1), 1.0
            ),
            "v_cache must have block stride 2048 as k_cache, got 4096",
            id="block stride",
        ),
        pytest.param(
            lambda: paged_decode_attention(zeros(1, 5, 64), CACHE, CACHE, ints(1, 1), ints(1), 1.0),
            "num_q_heads must be 1 to 16 times num_kv_heads=2, got 5",
            id="decode group",
        ),
        pytest.param(
            lambda: paged_decode_attention(
                zeros(1, 4, 64), CACHE, CACHE, ints(1, 1, dtype=torch.int64), ints(1), 1.0
            ),
            "block_table must be contiguous [1, blocks] int32 on cpu, got [1, 1] int64 on cpu",
            id="block table",
        ),
        pytest.param(
            lambda: paged_prefill_attention(
                zeros(3, 4, 64), CACHE, CACHE, ints(1, 1), ints(1), ints(1), 1.0
            ),
            "cu_seqlens must be contiguous [2] int32 on cpu, got [1] int32 on cpu",
            id="cu_seqlens",
        ),
        pytest.param(
            lambda: paged_prefill_attention(
                zeros(3, 40, 64), CACHE, CACHE, ints(1, 1), ints(2), ints(1), 1.0
            ),
            "num_q_heads must be 1 to 16 times num_kv_heads=2, got 40",
            id="prefill group",
        ),
        pytest.param(
            lambda: paged_prefill_attention(
                zeros(1, 1, 512),
                zeros(1, 16, 1, 512),
                zeros(1, 16, 1, 512),
                ints(1, 1),
                ints(2),
                ints(1),
                1.0,
            ),
            "head_size must be at most 256, got 512",
            id="head size",
        ),
        pytest.param(
            lambda: rope(num_kv_heads=1),
            "k_cache must have num_kv_heads=1, got 2",
            id="kv heads",
        ),
        pytest.param(
            lambda: rope(q_norm=zeros(64)),
            "q_norm and k_norm must be given together, got only one of them",
            id="one norm",
        ),
        pytest.param(
            lambda: rope(slots=ints(3)),
            "slots must be contiguous [3] int64 on cpu, got [3] int32 on cpu",
            id="slots",
        ),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(call: object, message: str) -> None:
    """A kernel that ran on it would read or write memory that is not its own."""
    assert callable(call)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


def rope(
    *,
    num_kv_heads: int = 2,
    q_norm: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
) -> torch.Tensor:
    longs = ints(3, dtype=torch.int64)
    return rope_and_store_kv(
        zeros(3, 8 * 64),
        longs,
        zeros(10, 64),
        longs if slots is None else slots,
        CACHE,
        CACHE,
        num_q_heads=4,
        num_kv_heads=num_kv_heads,
        q_norm=q_norm,
    )
