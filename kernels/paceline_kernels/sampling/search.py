"""Searches the listed groups for the largest key with a given count or mass from it on; ties."""

import triton
import triton.language as tl

from paceline_kernels.sampling.keys import decoded, ordered
from paceline_kernels.sampling.listed import listed


@triton.jit
def _amounts_from(
    by_mass,
    first_key,
    second_key,
    third_key,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    peak,
    inverse,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """Number of logits from each of three keys on, or their exp((logit - peak) / temperature)."""
    first = tl.zeros([BATCH], dtype=tl.float32)
    second = tl.zeros([BATCH], dtype=tl.float32)
    third = tl.zeros([BATCH], dtype=tl.float32)
    for start in range(0, num_listed, BATCH):
        x, _, _ = listed(logits_ptr, list_ptr, num_listed, start, vocab, GROUP, BATCH)
        keys = ordered(x) >> SHIFT
        amounts = tl.where(by_mass, tl.exp((x - peak) * inverse), 1.0)
        first += tl.sum(tl.where(keys >= first_key, amounts, 0.0), axis=1)
        second += tl.sum(tl.where(keys >= second_key, amounts, 0.0), axis=1)
        third += tl.sum(tl.where(keys >= third_key, amounts, 0.0), axis=1)
    return tl.sum(first, axis=0), tl.sum(second, axis=0), tl.sum(third, axis=0)


@triton.jit
def last_with(
    wanted,
    by_mass,
    low,
    high,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    peak,
    inverse,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """The largest key in [low, high] from which on there is as much as wanted; else `low`.

    Quarter by quarter: half as many passes as by halves. Counts are whole in float32.
    """
    while low < high:
        step = (high - low + 3) >> 2
        first = low + step
        second = tl.minimum(first + step, high)
        third = tl.minimum(second + step, high)
        of_first, of_second, of_third = _amounts_from(
            by_mass,
            first.to(tl.int32),
            second.to(tl.int32),
            third.to(tl.int32),
            logits_ptr,
            list_ptr,
            num_listed,
            vocab,
            peak,
            inverse,
            SHIFT,
            GROUP,
            BATCH,
        )
        if of_third >= wanted:
            low = third
        elif of_second >= wanted:
            low = second
            high = third - 1
        elif of_first >= wanted:
            low = first
            high = second - 1
        else:
            high = first - 1
    return low


@triton.jit
def around(
    low,
    by_mass,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    peak,
    inverse,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """How much there is above a key, and from it on."""
    above, from_low, _ = _amounts_from(
        by_mass,
        low.to(tl.int32) + 1,
        low.to(tl.int32),
        low.to(tl.int32),
        logits_ptr,
        list_ptr,
        num_listed,
        vocab,
        peak,
        inverse,
        SHIFT,
        GROUP,
        BATCH,
    )
    return above, from_low


@triton.jit
def weight_of(low, peak, inverse, SHIFT: tl.constexpr):
    """exp((logit - peak) / temperature) of a key."""
    return tl.exp((decoded(low.to(tl.int32), SHIFT) - peak) * inverse)


@triton.jit
def place_of_tie(
    key,
    number,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """Column of the `number`-th logit with this key, from 1; `vocab` where there are fewer."""
    seen = tl.full([], 0, dtype=tl.int32)
    chosen = tl.full([], -1, dtype=tl.int32)
    before_chosen = tl.full([], 0, dtype=tl.int32)
    for first in range(0, num_listed, BATCH):
        x, _, groups = listed(logits_ptr, list_ptr, num_listed, first, vocab, GROUP, BATCH)
        ties = tl.sum((ordered(x) >> SHIFT == key).to(tl.int32), axis=1)
        before = seen + tl.cumsum(ties, axis=0) - ties
        is_in = (before < number) & (number <= before + ties)
        chosen = tl.maximum(chosen, tl.max(tl.where(is_in, groups, -1), axis=0))
        before_chosen += tl.sum(tl.where(is_in, before, 0), axis=0)
        seen += tl.sum(ties, axis=0)
    columns = tl.where(chosen >= 0, chosen * GROUP, vocab) + tl.arange(0, GROUP)
    inside = columns < vocab
    x = tl.load(logits_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32)
    is_tie = (ordered(x) >> SHIFT == key) & inside
    is_it = is_tie & (before_chosen + tl.cumsum(is_tie.to(tl.int32), axis=0) == number)
    return tl.min(tl.where(is_it, columns, vocab), axis=0)
