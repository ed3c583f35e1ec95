"""QK norm, rotary embedding and the KV write in one Triton kernel, and its launcher."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, Exponents, expect, expect_caches
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.fp8.kernel import encode, exponent_of, inverse_scale_of
from paceline_kernels.prepared import Call, Calls, looks
from paceline_kernels.tuned import blocks_of

_CALLS = Calls()


# Slices of a step's inputs begin anywhere: their alignment is not compiled in.
@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rope_and_store_kv_kernel(
    qkv_ptr,
    positions_ptr,
    cos_sin_ptr,
    slots_ptr,
    q_norm_ptr,  # None: no QK norm
    k_norm_ptr,
    q_ptr,
    k_cache_ptr,  # FP8: its codes as bytes
    v_cache_ptr,
    k_exponents_ptr,  # None: no FP8
    v_exponents_ptr,
    block_stride,
    eps,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Turn each pair (x[i], x[i + half]) by its angle; a program takes HEADS heads of a token.

    q, k and v heads lie in one row and may share a program: a v head is turned by no angle.
    """
    wait_for_earlier(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)  # int64: token * width overflows int32 on long batches
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    half: tl.constexpr = HEAD_SIZE // 2
    dtype = q_ptr.dtype.element_ty

    is_q = head < NUM_Q_HEADS
    is_k = (head >= NUM_Q_HEADS) & (head < NUM_Q_HEADS + NUM_KV_HEADS)
    is_v = (head >= NUM_Q_HEADS + NUM_KV_HEADS) & (head < NUM_Q_HEADS + 2 * NUM_KV_HEADS)
    in_head = pair < half
    inside = (is_q | is_k | is_v) & in_head

    row_ptr = qkv_ptr + token * (NUM_Q_HEADS + 2 * NUM_KV_HEADS) * HEAD_SIZE
    first = tl.load(row_ptr + head * HEAD_SIZE + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(row_ptr + head * HEAD_SIZE + half + pair, mask=inside, other=0.0)
    second = second.to(tl.float32)

    if q_norm_ptr is not None:
        norm_ptr = tl.where(is_q, q_norm_ptr + pair, k_norm_ptr + pair)
        normed = (is_q | is_k) & in_head
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        inverse_rms = tl.rsqrt(squares / HEAD_SIZE + eps)
        weight = tl.load(norm_ptr, mask=normed, other=1.0)
        rounded = (first * inverse_rms).to(weight.dtype).to(tl.float32)
        first_normed = (rounded * weight.to(tl.float32)).to(dtype)
        weight = tl.load(norm_ptr + half, mask=normed, other=1.0)
        rounded = (second * inverse_rms).to(weight.dtype).to(tl.float32)
        second_normed = (rounded * weight.to(tl.float32)).to(dtype)
        first = tl.where(normed, first_normed.to(tl.float32), first)
        second = tl.where(normed, second_normed.to(tl.float32), second)

    angle_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * HEAD_SIZE + pair
    cos = tl.load(angle_ptr, mask=in_head, other=1.0).to(tl.float32)
    sin = tl.load(angle_ptr + half, mask=in_head, other=0.0).to(tl.float32)
    turned_first = tl.where(is_v, first, first * cos - second * sin).to(dtype)
    turned_second = tl.where(is_v, second, second * cos + first * sin).to(dtype)

    q_at = (token * NUM_Q_HEADS + head) * HEAD_SIZE + pair
    tl.store(q_ptr + q_at, turned_first, mask=is_q & in_head)
    tl.store(q_ptr + q_at + half, turned_second, mask=is_q & in_head)

    stored_first, stored_second = turned_first, turned_second
    if k_exponents_ptr is not None:
        wide_first, wide_second = turned_first.to(tl.float32), turned_second.to(tl.float32)
        exponent = exponent_of(wide_first, wide_second)[:, None]
        inverse = inverse_scale_of(exponent)
        stored_first, stored_second = encode(wide_first * inverse), encode(wide_second * inverse)

    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        in_block = (slot % BLOCK_SIZE) * NUM_KV_HEADS * HEAD_SIZE
        slot_at = slot // BLOCK_SIZE * block_stride + in_block
        if k_exponents_ptr is not None:
            first_head = slot * NUM_KV_HEADS - NUM_Q_HEADS
            exponents = exponent.to(tl.uint8)
            tl.store(k_exponents_ptr + first_head + head, exponents, mask=is_k)
            tl.store(v_exponents_ptr + first_head - NUM_KV_HEADS + head, exponents, mask=is_v)
        k_at = slot_at + (head - NUM_Q_HEADS) * HEAD_SIZE + pair
        tl.store(k_cache_ptr + k_at, stored_first, mask=is_k & in_head)
        tl.store(k_cache_ptr + k_at + half, stored_second, mask=is_k & in_head)
        v_at = slot_at + (head - NUM_Q_HEADS - NUM_KV_HEADS) * HEAD_SIZE + pair
        tl.store(v_cache_ptr + v_at, stored_first, mask=is_v & in_head)
        tl.store(v_cache_ptr + v_at + half, stored_second, mask=is_v & in_head)


def rope_and_store_kv(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    exponents: Exponents = None,
) -> Tensor:
    """Launch over every token and every group of heads; writes the caches, returns q."""
    caches = (k_cache, v_cache, *(exponents or (None, None)))
    tensors = (qkv, positions, cos_sin, slots, q_norm, k_norm, *caches)
    key = _CALLS.key(num_q_heads, num_kv_heads, *map(looks, tensors))
    call = _CALLS.get(key) or _CALLS.keep(
        key,
        _checked(
            qkv,
            positions,
            cos_sin,
            slots,
            k_cache,
            v_cache,
            num_q_heads,
            num_kv_heads,
            q_norm,
            k_norm,
            exponents,
        ),
    )
    q = torch.empty((len(qkv), num_q_heads, k_cache.shape[3]), dtype=qkv.dtype, device=qkv.device)
    if exponents is not None:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    stored = (k_cache, v_cache, *caches[2:])
    call((qkv, positions, cos_sin, slots, q_norm, k_norm, q, *stored), k_cache.stride(0), eps)
    return q


def _checked(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    exponents: Exponents,
) -> Call:
    expect_caches(k_cache, v_cache, exponents, like=qkv)
    num_tokens = len(qkv)
    _, block_size, cached_heads, head_size = k_cache.shape
    if cached_heads != num_kv_heads:
        raise ValueError(f"k_cache must have num_kv_heads={num_kv_heads}, got {cached_heads}")
    num_heads = num_q_heads + 2 * num_kv_heads
    expect("qkv", qkv, shape=(num_tokens, num_heads * head_size), dtypes=FLOATS, like=qkv)
    expect("positions", positions, shape=(num_tokens,), dtypes=(torch.int64,), like=qkv)
    expect("slots", slots, shape=(num_tokens,), dtypes=(torch.int64,), like=qkv)
    expect("cos_sin", cos_sin, shape=("max_len", head_size), dtypes=FLOATS, like=qkv)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm must be given together, got only one of them")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            expect(name, norm, shape=(head_size,), dtypes=(qkv.dtype, torch.float32), like=qkv)
    if q_norm is not None and k_norm is not None and q_norm.dtype != k_norm.dtype:
        raise ValueError(f"k_norm must be {q_norm.dtype} as q_norm, got {k_norm.dtype}")

    half = triton.next_power_of_2(head_size // 2)
    blocks = blocks_of("rope_and_store_kv", qkv.device, columns=2 * half)
    return Call(
        _rope_and_store_kv_kernel,
        (num_tokens, triton.cdiv(num_heads, blocks["heads"])),
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        HEADS=blocks["heads"],
        HALF=half,
        **dependent(qkv.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
