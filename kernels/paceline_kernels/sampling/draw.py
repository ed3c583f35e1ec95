"""Chooses the token: the largest logit, or a draw from the tokens that the cuts keep.

A draw takes two steps, each the largest of some numbers with Gumbel noise: a group by the logarithm
of its mass, then a token of it by its logit. Together they draw a token with its probability, and
the noise of 128 tokens is made, not of all.
"""

import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.sampling.groups import inverse_of, is_greedy, row_groups
from paceline_kernels.sampling.listed import listed
from paceline_kernels.sampling.noise import GROUP_STREAM, gumbel, row_key


@triton.jit
def _kept(x, columns, cut, place):
    return (x > cut) | ((x == cut) & (columns <= place))


@triton.jit
def _log(masses):
    """Return the log of masses, finite for 0 but below that of any token that can be chosen."""
    return tl.log(tl.maximum(masses, 1e-37))


@triton.jit
def _group_noise(key, groups):
    return gumbel(key, groups.to(tl.uint32) + GROUP_STREAM)


@triton.jit
def _drawn_of_listed(
    key,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    peak,
    inverse,
    cut,
    place,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """A group of those listed, by the mass of what is kept of it."""
    best_score = tl.full([], float("-inf"), dtype=tl.float32)
    chosen = tl.full([], 0, dtype=tl.int32)
    for first in range(0, num_listed, BATCH):
        x, columns, groups = listed(logits_ptr, list_ptr, num_listed, first, vocab, GROUP, BATCH)
        weights = tl.exp((x - peak) * inverse)
        masses = tl.sum(tl.where(_kept(x, columns, cut, place), weights, 0.0), axis=1)
        is_there = first + tl.arange(0, BATCH) < num_listed
        scores = tl.where(is_there, _log(masses) + _group_noise(key, groups), float("-inf"))
        score = tl.max(scores, axis=0)
        group = tl.min(tl.where(scores == score, groups, 0x7FFFFFFF), axis=0)
        chosen = tl.where(score > best_score, group, chosen)
        best_score = tl.maximum(score, best_score)
    return chosen


@triton.jit(
    do_not_specialize_on_alignment=["temperatures_ptr", "seeds_ptr", "positions_ptr", "tokens_ptr"]
)
def _draw_kernel(
    logits_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    best_ptr,
    sums_ptr,
    list_ptr,
    num_listed_ptr,
    cut_ptr,
    place_ptr,
    tokens_ptr,  # [rows] int64
    vocab,
    num_groups,
    NOT_A_TOKEN: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BATCH: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Choose the token of one row."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures_ptr + row)
    takes_best = is_greedy(temperature)
    inverse = inverse_of(temperature)
    groups = tl.arange(0, NUM_GROUPS)
    is_group = groups < num_groups
    at = row * num_groups + groups
    best, peak, is_broken = row_groups(best_ptr + at, is_group)
    if is_broken:
        tl.store(tokens_ptr + row, NOT_A_TOKEN)
        return

    row_ptr = logits_ptr + row * vocab
    key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    cut = tl.load(cut_ptr + row)
    place = tl.load(place_ptr + row)
    if takes_best:
        group = tl.argmax(best, axis=0, tie_break_left=True).to(tl.int32)
    elif cut == float("-inf"):
        sums = tl.load(sums_ptr + at, mask=is_group, other=0.0)
        scores = (best - peak) * inverse + _log(sums) + _group_noise(key, groups)
        scores = tl.where(is_group, scores, float("-inf"))
        group = tl.argmax(scores, axis=0, tie_break_left=True).to(tl.int32)
    else:
        group = _drawn_of_listed(
            key,
            row_ptr,
            list_ptr + row * num_groups,
            tl.load(num_listed_ptr + row),
            vocab,
            peak,
            inverse,
            cut,
            place,
            GROUP,
            BATCH,
        )

    columns = group * GROUP + tl.arange(0, GROUP)
    x = tl.load(row_ptr + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    scores = (x - peak) * inverse + gumbel(key, columns.to(tl.uint32))
    scores = tl.where(_kept(x, columns, cut, place), scores, float("-inf"))
    scores = tl.where(takes_best, x, scores)
    token = group * GROUP + tl.argmax(scores, axis=0, tie_break_left=True).to(tl.int32)
    tl.store(tokens_ptr + row, token.to(tl.int64))
