"""Embedding and first norm in Triton, and the launcher."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.norm.kernel import MAX_HIDDEN
from paceline_kernels.tuned import blocks_of


# Slices of a step's inputs begin anywhere: their alignment is not compiled in.
@triton.jit(do_not_specialize_on_alignment=["ids_ptr"])
def _embed_rms_norm_kernel(
    ids_ptr,
    embedding_ptr,
    weight_ptr,
    normed_ptr,
    residual_ptr,
    hidden,
    scale,
    eps,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Gather a row, scale it, and normalise what the residual stream begins with."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: row * hidden overflows int32 on long batches
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    offsets = row * hidden + columns
    dtype = normed_ptr.dtype.element_ty

    token = tl.load(ids_ptr + row)
    x = tl.load(embedding_ptr + token * hidden + columns, mask=inside, other=0.0)
    rounded = (x.to(tl.float32) * scale).to(dtype)
    tl.store(residual_ptr + offsets, rounded, mask=inside)

    x = rounded.to(tl.float32)  # the norm of what the next layer adds to
    inverse_rms = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    normed = (x * inverse_rms).to(weight.dtype).to(tl.float32)
    tl.store(normed_ptr + offsets, (normed * weight.to(tl.float32)).to(dtype), mask=inside)


def embed_rms_norm(
    token_ids: Tensor, embedding: Tensor, weight: Tensor, eps: float, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Launch over every token; none may lie outside of the vocabulary."""
    expect("token_ids", token_ids, shape=("tokens",), dtypes=(torch.int64,), like=token_ids)
    expect("embedding", embedding, shape=("vocab", "hidden"), dtypes=FLOATS, like=token_ids)
    hidden = embedding.shape[1]
    dtypes = (embedding.dtype, torch.float32)
    expect("weight", weight, shape=(hidden,), dtypes=dtypes, like=token_ids)
    if hidden > MAX_HIDDEN:
        raise ValueError(f"hidden must be at most {MAX_HIDDEN}, got {hidden}")
    sizes = (len(token_ids), hidden)
    normed, residual = (
        torch.empty(sizes, dtype=embedding.dtype, device=embedding.device) for _ in range(2)
    )
    block = triton.next_power_of_2(hidden)
    blocks = blocks_of("rms_norm", embedding.device, columns=block, out="own")
    _embed_rms_norm_kernel[(len(token_ids),)](
        token_ids,
        embedding,
        weight,
        normed,
        residual,
        hidden,
        scale,
        eps,
        BLOCK=block,
        **dependent(token_ids.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
    return normed, residual
