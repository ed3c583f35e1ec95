"""The launchers: three kernels, one behind the other, on a grid that follows from shapes alone."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from paceline_kernels.checks import FLOATS, MAX_VOCAB, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.sampling.adjust import _forbid_kernel, _penalise_kernel
from paceline_kernels.sampling.cuts import _cuts_kernel
from paceline_kernels.sampling.draw import _draw_kernel
from paceline_kernels.sampling.groups import GROUP, TILE_GROUPS, _groups_kernel
from paceline_kernels.sampling.likelihood import _likelihood_kernel
from paceline_kernels.sampling.reference import NOT_A_TOKEN

_BATCH = 16
"""Groups read again at a time: 8 logits a thread. With twice as many, registers spill."""
_ROW_REGISTERS = 128
"""Left to itself the assembler aims at fewer, for programs that a row's kernels do not have."""
# Of a float32's bits, those that are alike in all numbers of the type.
_SHIFTS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


class Cuts(NamedTuple):
    """What is kept of each row, and where it lies."""

    values: Tensor  # [rows] float32: the last logit kept; -inf where nothing is cut
    places: Tensor  # [rows] int32: the last column kept among logits equal to it
    groups: Tensor  # [rows, groups] int32: the first `num_groups` of a row may hold what is kept
    num_groups: Tensor  # [rows] int32


def sample_tokens(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Launch over every tile, then over every row twice."""
    _check(logits, temperatures, top_k, top_p, min_p)
    rows, vocab = logits.shape
    for name, each in (("seeds", seeds), ("positions", positions)):
        expect(name, each, shape=(rows,), dtypes=(torch.int64,), like=logits)
    best, sums = group_stats(logits, temperatures)
    cuts = find_cuts(logits, temperatures, top_k, top_p, min_p, best, sums)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    expect("out", tokens, shape=(rows,), dtypes=(torch.int64,), like=logits)
    num_groups = best.shape[1]
    _draw_kernel[(rows,)](
        logits,
        temperatures,
        seeds,
        positions,
        best,
        sums,
        cuts.groups,
        cuts.num_groups,
        cuts.values,
        cuts.places,
        tokens,
        vocab,
        num_groups,
        NOT_A_TOKEN=NOT_A_TOKEN,
        GROUP=GROUP,
        NUM_GROUPS=triton.next_power_of_2(num_groups),
        BATCH=_BATCH,
        **dependent(logits.device),
        num_warps=8,
        maxnreg=_ROW_REGISTERS,
        enable_fp_fusion=True,
    )
    return tokens


def group_stats(logits: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Each group of a row [rows, groups]: its largest logit, and its mass relative to that."""
    rows, vocab = logits.shape
    num_groups = -(-vocab // GROUP)
    best = torch.empty((rows, num_groups), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(best)
    _groups_kernel[rows, triton.cdiv(num_groups, TILE_GROUPS)](
        logits,
        temperatures,
        best,
        sums,
        vocab,
        num_groups,
        GROUP=GROUP,
        TILE_GROUPS=TILE_GROUPS,
        **dependent(logits.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return best, sums


def find_cuts(
    logits: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    best: Tensor,
    sums: Tensor,
) -> Cuts:
    """What top-k, top-p and min-p keep of each row."""
    rows, vocab = logits.shape
    num_groups = best.shape[1]

    def ints(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.int32, device=logits.device)

    cuts = Cuts(torch.empty_like(best[:, 0]), ints(rows), ints(rows, num_groups), ints(rows))
    _cuts_kernel[(rows,)](
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        best,
        sums,
        cuts.groups,
        cuts.num_groups,
        cuts.values,
        cuts.places,
        vocab,
        num_groups,
        GROUP=GROUP,
        NUM_GROUPS=triton.next_power_of_2(num_groups),
        BATCH=_BATCH,
        SHIFT=_SHIFTS[logits.dtype],
        **dependent(logits.device),
        num_warps=8,
        maxnreg=_ROW_REGISTERS,
        enable_fp_fusion=True,
    )
    return cuts


def _check(
    logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> None:
    _check_logits(logits)
    rows = len(logits)
    expect("top_k", top_k, shape=(rows,), dtypes=(torch.int32,), like=logits)
    floats = (("temperatures", temperatures), ("top_p", top_p), ("min_p", min_p))
    for name, each in floats:
        expect(name, each, shape=(rows,), dtypes=(torch.float32,), like=logits)


def _check_logits(logits: Tensor) -> None:
    expect("logits", logits, shape=("rows", "vocab"), dtypes=FLOATS, like=logits)
    if not 1 <= logits.shape[1] <= MAX_VOCAB:
        raise ValueError(f"vocab must be 1 to {MAX_VOCAB}, got {logits.shape[1]}")


def penalise(
    scores: Tensor,
    ids: Tensor,
    counts: Tensor,
    starts: Tensor,
    arriving: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Launch over every row."""
    expect("scores", scores, shape=("rows", "vocab"), dtypes=(torch.float32,), like=scores)
    rows, vocab = scores.shape
    expect("ids", ids, shape=("ids",), dtypes=(torch.int32,), like=scores)
    expect("counts", counts, shape=ids.shape, dtypes=(torch.int32,), like=scores)
    expect("starts", starts, shape=(rows + 1,), dtypes=(torch.int32,), like=scores)
    expect("arriving", arriving, shape=(rows,), dtypes=(torch.int64,), like=scores)
    floats = (("repetition", repetition), ("frequency", frequency), ("presence", presence))
    for name, each in floats:
        expect(name, each, shape=(rows,), dtypes=(torch.float32,), like=scores)
    _penalise_kernel[(rows,)](
        scores,
        ids,
        counts,
        starts,
        arriving,
        repetition,
        frequency,
        presence,
        vocab,
        BLOCK=512,
        **dependent(scores.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return scores


def forbid(scores: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """Launch over every tile of the rows that have a mask."""
    expect("scores", scores, shape=("rows", "vocab"), dtypes=(torch.float32,), like=scores)
    vocab = scores.shape[1]
    expect("rows", rows, shape=("masks",), dtypes=(torch.int64,), like=scores)
    expect("words", words, shape=(len(rows), "words"), dtypes=(torch.int32,), like=scores)
    if words.shape[1] * 32 < vocab:
        raise ValueError(f"words must hold {vocab} bits, got {words.shape[1]} words of 32")
    block = 1024
    _forbid_kernel[len(rows), triton.cdiv(vocab, block)](
        scores,
        rows,
        words,
        vocab,
        words.shape[1],
        BLOCK=block,
        **dependent(scores.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return scores


def token_likelihoods(logits: Tensor, tokens: Tensor, num_top: int) -> Tensor:
    """Launch over every tile, then over every row."""
    _check_logits(logits)
    rows, vocab = logits.shape
    expect("tokens", tokens, shape=(rows,), dtypes=(torch.int64,), like=logits)
    if not 0 <= num_top <= vocab:
        raise ValueError(f"num_top must be 0 to {vocab}, got {num_top}")
    best, sums = group_stats(logits, torch.ones(rows, device=logits.device))
    num_groups = best.shape[1]
    numbers = torch.empty((rows, 2 + 2 * num_top), dtype=torch.float32, device=logits.device)
    _likelihood_kernel[(rows,)](
        logits,
        tokens,
        best,
        sums,
        torch.empty((rows, num_groups), dtype=torch.int32, device=logits.device),
        numbers,
        vocab,
        num_groups,
        num_top,
        GROUP=GROUP,
        NUM_GROUPS=triton.next_power_of_2(num_groups),
        BATCH=_BATCH,
        **dependent(logits.device),
        num_warps=8,
        maxnreg=_ROW_REGISTERS,
        enable_fp_fusion=True,
    )
    return numbers
