"""Decode attention in plain torch: the ground truth."""

from typing import NamedTuple

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.paged_kv.gathered import gathered


class DecodePlan(NamedTuple):
    """How the programs of one launch share the rows: `plan.py`. It serves every layer of a step."""

    ends: Tensor  # [rows] int32: units of the rows up to this one, itself included
    runs: Tensor  # [programs, 2] int32: the first and the last row of each program's run
    arrived: Tensor  # [rows, num_kv_heads] int32: 0 before a launch and after it


def plan_decode_attention(
    q: Tensor,  # noqa: ARG001 - as the kernel's launcher
    k_cache: Tensor,  # noqa: ARG001
    context_lens: Tensor,  # noqa: ARG001
    window: int | None = None,  # noqa: ARG001
) -> DecodePlan | None:
    """Share out what `paged_decode_attention` has to read; the reference needs no plan."""
    return None


def paged_decode_attention(
    q: Tensor,  # [rows, num_q_heads, head_size]
    k_cache: Tensor,  # [blocks, block_size, num_kv_heads, head_size]
    v_cache: Tensor,  # as k_cache
    block_table: Tensor,  # [rows, max_blocks] int32; read only as far as the context goes
    context_lens: Tensor,  # [rows] int32: tokens that the row attends to; 0 is a padding row
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    exponents: Exponents = None,
    *,
    plan: DecodePlan | None = None,  # noqa: ARG001 - the kernel's
    out: Tensor | None = None,  # as q
) -> Tensor:  # [rows, num_q_heads, head_size]
    """Attend from each row's one query to its whole context; a padding row gives zeros.

    `plan` is of these lengths and this window; without one it is made. `out` takes the result.

    `window`: only to the last so many tokens, the query's own included. `softcap`: scores are
    kept within it, cap * tanh(score / cap). `exponents`: the caches hold FP8.
    """
    _, block_size, num_kv_heads, head_size = k_cache.shape
    out = torch.zeros_like(q) if out is None else out.zero_()
    for row, length in enumerate(context_lens.tolist()):
        if length == 0:
            continue
        blocks = block_table[row, : -(-length // block_size)]
        k, v = (  # [length, kv heads, size]
            cache.flatten(0, 1)[:length]
            for cache in gathered(k_cache, v_cache, blocks, exponents, dtype=q.dtype)
        )
        if window is not None:
            k, v = k[-window:], v[-window:]
        # The query heads that share a KV head are a group, and stand where a sequence would.
        group = q[row].view(num_kv_heads, -1, head_size)
        scores = group @ k.permute(1, 2, 0) * scale  # [kv heads, group, length]
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        attended = scores.softmax(dim=-1) @ v.transpose(0, 1)
        out[row] = attended.reshape(-1, head_size)
    return out
