"""Where top-k, top-p and min-p cut a row: exact, without a sort, in the groups that matter.

Ordered by logit, and equal ones by place, what is kept is the first few. The cut is the last of
them: its logit and its place. Three facts about the groups give a logit that it cannot lie below:

* the k-th largest of the groups' best: so many logits are at least as large;
* the best logit and `temperature * log(min_p)`;
* for top-p, where what may lie below, group by group, is at most `1 - top_p` of everything: a group
  whose best is below has all of its mass there, another at most 127 times that of the bound.

Groups whose best is below that are never read again. In the others the cut is found by halving:
the largest logit with so many, or so much, from it on.
"""

import triton
import triton.language as tl

from paceline_kernels.sampling.groups import inverse_of, is_greedy, row_groups

_LOWEST = tl.constexpr(-3.4028234663852886e38)
_COARSE = tl.constexpr(1 << 16)
"""Of a float32's bits: a bound need not be sharper than a hundredth."""
_DEEPEST = tl.constexpr(32.0)
"""exp(-32) of the likeliest, a million times, is nothing in float32."""


@triton.jit
def _ordered(x):
    """Whole numbers in the order of the floats, 0 and -0 alike."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _float_of(key):
    """Back from `_ordered`."""
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _decoded(key, SHIFT: tl.constexpr):
    """The float of a key without its low bits: they are all 0, or all 1 of a negative one."""
    low = tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return _float_of((key << SHIFT) | low)


@triton.jit
def list_groups(groups, is_listed, list_ptr):
    """Write down which groups are read again, in order; how many they are."""
    ones = is_listed.to(tl.int32)
    tl.store(list_ptr + tl.cumsum(ones, axis=0) - 1, groups, mask=is_listed)
    tl.debug_barrier()  # the other threads of the program read the list
    return tl.sum(ones, axis=0)


@triton.jit
def listed(
    logits_ptr, list_ptr, num_listed, first, vocab, GROUP: tl.constexpr, BATCH: tl.constexpr
):
    """The logits [BATCH, GROUP] of the groups listed from `first` on, and their columns."""
    places = first + tl.arange(0, BATCH)
    groups = tl.load(list_ptr + places, mask=places < num_listed, other=0)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = (places < num_listed)[:, None] & (columns < vocab)
    x = tl.load(logits_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32)
    return x, columns, groups


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
        keys = _ordered(x) >> SHIFT
        amounts = tl.where(by_mass, tl.exp((x - peak) * inverse), 1.0)
        first += tl.sum(tl.where(keys >= first_key, amounts, 0.0), axis=1)
        second += tl.sum(tl.where(keys >= second_key, amounts, 0.0), axis=1)
        third += tl.sum(tl.where(keys >= third_key, amounts, 0.0), axis=1)
    return tl.sum(first, axis=0), tl.sum(second, axis=0), tl.sum(third, axis=0)


@triton.jit
def _last_with(
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
def _around(
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
def _weight(low, peak, inverse, SHIFT: tl.constexpr):
    return tl.exp((_decoded(low.to(tl.int32), SHIFT) - peak) * inverse)


@triton.jit
def bound_of_count(best, peak, k):
    """A logit that at least `k` groups reach: near the k-th largest of their best, and below it."""
    keys = _ordered(best)
    low = tl.full([], -0x7F7FFFFF - 1, dtype=tl.int64)
    high = _ordered(peak).to(tl.int64)
    while low + _COARSE < high:
        middle = (low + high + 1) >> 1
        if tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), axis=0) >= k:
            low = middle
        else:
            high = middle - 1
    return _float_of(low.to(tl.int32))


@triton.jit
def _bound_of_mass(best, sums, peak, inverse, temperature, p, GROUP: tl.constexpr):
    """A logit below which there is at most `1 - p` of the mass; -inf where none is sure."""
    likeliest = tl.exp((best - peak) * inverse)  # 0 of an empty group
    masses = sums * likeliest
    allowed = (1.0 - p) * tl.sum(masses, axis=0) * 0.999
    lowest = tl.full([], 0.0, dtype=tl.float32)
    deepest = tl.full([], _DEEPEST, dtype=tl.float32)
    for _ in range(10):
        depth = (lowest + deepest) * 0.5
        bound = tl.exp(-depth)
        rest = tl.minimum(masses - likeliest, (GROUP - 1) * bound)
        is_enough = tl.sum(tl.where(likeliest < bound, masses, rest), axis=0) <= allowed
        deepest = tl.where(is_enough, depth, deepest)
        lowest = tl.where(is_enough, lowest, depth)
    # A hair deeper, for the sums above and the comparison below do not round alike.
    bound = peak - (deepest + 0.01) * temperature
    return tl.where(deepest < _DEEPEST, bound, float("-inf"))


@triton.jit
def _place_of_tie(
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
        ties = tl.sum((_ordered(x) >> SHIFT == key).to(tl.int32), axis=1)
        before = seen + tl.cumsum(ties, axis=0) - ties
        is_in = (before < number) & (number <= before + ties)
        chosen = tl.maximum(chosen, tl.max(tl.where(is_in, groups, -1), axis=0))
        before_chosen += tl.sum(tl.where(is_in, before, 0), axis=0)
        seen += tl.sum(ties, axis=0)
    columns = tl.where(chosen >= 0, chosen * GROUP, vocab) + tl.arange(0, GROUP)
    inside = columns < vocab
    x = tl.load(logits_ptr + columns, mask=inside, other=float("-inf")).to(tl.float32)
    is_tie = (_ordered(x) >> SHIFT == key) & inside
    is_it = is_tie & (before_chosen + tl.cumsum(is_tie.to(tl.int32), axis=0) == number)
    return tl.min(tl.where(is_it, columns, vocab), axis=0)


@triton.jit(
    do_not_specialize_on_alignment=["temperatures_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"]
)
def _cuts_kernel(
    logits_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    best_ptr,
    sums_ptr,
    list_ptr,  # [rows, groups] int32: those that may hold what is kept, in order
    num_listed_ptr,  # [rows] int32; all groups where nothing is cut
    cut_ptr,  # [rows] float32: the last logit kept; -inf where nothing is cut
    place_ptr,  # [rows] int32: the last column that is kept among equals of it
    vocab,
    num_groups,
    GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr,  # a power of 2 that is enough
    BATCH: tl.constexpr,
    SHIFT: tl.constexpr,  # low bits of a key that tell no two logits apart
):
    """Find the cut of one row."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures_ptr + row)
    k = tl.load(top_k_ptr + row)
    p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    has_k = (k > 0) & (k < vocab)
    has_p = p < 1.0
    has_min = min_p > 0.0

    groups = tl.arange(0, NUM_GROUPS)
    is_group = groups < num_groups
    at = row * num_groups + groups
    best, peak, is_broken = row_groups(best_ptr + at, is_group)
    tl.store(num_listed_ptr + row, num_groups)
    tl.store(cut_ptr + row, float("-inf"))
    tl.store(place_ptr + row, vocab)
    if is_broken | is_greedy(temperature) | ((has_k | has_p | has_min) == 0):
        return

    sums = tl.load(sums_ptr + at, mask=is_group, other=0.0)
    inverse = inverse_of(temperature)
    floor = tl.full([], _LOWEST, dtype=tl.float32)
    if has_min:
        floor = tl.minimum(peak + temperature * tl.log(min_p), peak)
    bound = floor
    if has_k & (k <= num_groups):
        bound = tl.maximum(bound, bound_of_count(best, peak, k))
    if has_p & ((has_k | has_min) == 0):
        bound = tl.maximum(bound, _bound_of_mass(best, sums, peak, inverse, temperature, p, GROUP))

    row_list_ptr = list_ptr + row * num_groups
    is_listed = is_group & (best >= bound)
    num_listed = list_groups(groups, is_listed, row_list_ptr)
    tl.store(num_listed_ptr + row, num_listed)

    row_ptr = logits_ptr + row * vocab
    low_key = _ordered(bound) >> SHIFT
    # Between two that a logit can be: the upper one.
    low = (low_key + (_decoded(low_key, SHIFT) < bound).to(tl.int32)).to(tl.int64)
    highest = (_ordered(peak) >> SHIFT).to(tl.int64)
    # What is left: all above `low`, and so many equal to it. First top-k cuts by number, then top-p
    # by mass, in the same code, or its registers would not suffice.
    kept = tl.full([], float("inf"), dtype=tl.float32)
    total = tl.sum(sums * tl.exp((best - peak) * inverse), axis=0)
    for cutter in range(2):
        by_mass = cutter == 1
        if (has_p & by_mass) | (has_k & (cutter == 0)):
            if by_mass & (has_k | has_min):
                above, from_low = _around(
                    low,
                    by_mass,
                    row_ptr,
                    row_list_ptr,
                    num_listed,
                    vocab,
                    peak,
                    inverse,
                    SHIFT,
                    GROUP,
                    BATCH,
                )
                weight = _weight(low, peak, inverse, SHIFT)
                total = above + tl.minimum(from_low - above, kept * weight)
            wanted = tl.where(by_mass, p * total, k.to(tl.float32))
            least = low
            low = _last_with(
                wanted,
                by_mass,
                low,
                highest,
                row_ptr,
                row_list_ptr,
                num_listed,
                vocab,
                peak,
                inverse,
                SHIFT,
                GROUP,
                BATCH,
            )
            above, from_low = _around(
                low,
                by_mass,
                row_ptr,
                row_list_ptr,
                num_listed,
                vocab,
                peak,
                inverse,
                SHIFT,
                GROUP,
                BATCH,
            )
            weight = tl.where(by_mass, _weight(low, peak, inverse, SHIFT), 1.0)
            missing = tl.maximum(tl.ceil((wanted - above) / tl.maximum(weight, 1e-37)), 1.0)
            kept = tl.where(low > least, missing, tl.minimum(missing, kept))

    cut_key = low.to(tl.int32)
    tl.store(cut_ptr + row, _decoded(cut_key, SHIFT))
    if kept < vocab:
        place = _place_of_tie(
            cut_key,
            kept.to(tl.int32),
            row_ptr,
            row_list_ptr,
            num_listed,
            vocab,
            SHIFT,
            GROUP,
            BATCH,
        )
        tl.store(place_ptr + row, place)
