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

from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.sampling.bounds import bound_of_count, bound_of_mass
from paceline_kernels.sampling.groups import inverse_of, is_greedy, row_groups
from paceline_kernels.sampling.keys import decoded, ordered
from paceline_kernels.sampling.listed import list_groups
from paceline_kernels.sampling.search import around, last_with, place_of_tie, weight_of

_LOWEST = tl.constexpr(-3.4028234663852886e38)


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
    IS_DEPENDENT: tl.constexpr = False,
):
    """Find the cut of one row."""
    wait_for_earlier(IS_DEPENDENT)
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
        bound = tl.maximum(bound, bound_of_mass(best, sums, peak, inverse, temperature, p, GROUP))

    row_list_ptr = list_ptr + row * num_groups
    is_listed = is_group & (best >= bound)
    num_listed = list_groups(groups, is_listed, row_list_ptr)
    tl.store(num_listed_ptr + row, num_listed)

    row_ptr = logits_ptr + row * vocab
    low_key = ordered(bound) >> SHIFT
    # If the bound is no value of the dtype, take the next one above it.
    low = (low_key + (decoded(low_key, SHIFT) < bound).to(tl.int32)).to(tl.int64)
    highest = (ordered(peak) >> SHIFT).to(tl.int64)
    # What is left: all above `low`, and so many equal to it. First top-k cuts by number, then top-p
    # by mass, in the same code, or its registers would not suffice.
    kept = tl.full([], float("inf"), dtype=tl.float32)
    total = tl.sum(sums * tl.exp((best - peak) * inverse), axis=0)
    for cutter in range(2):
        by_mass = cutter == 1
        if (has_p & by_mass) | (has_k & (cutter == 0)):
            if by_mass & (has_k | has_min):
                above, from_low = around(
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
                weight = weight_of(low, peak, inverse, SHIFT)
                total = above + tl.minimum(from_low - above, kept * weight)
            wanted = tl.where(by_mass, p * total, k.to(tl.float32))
            least = low
            low = last_with(
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
            above, from_low = around(
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
            weight = tl.where(by_mass, weight_of(low, peak, inverse, SHIFT), 1.0)
            missing = tl.maximum(tl.ceil((wanted - above) / tl.maximum(weight, 1e-37)), 1.0)
            kept = tl.where(low > least, missing, tl.minimum(missing, kept))

    cut_key = low.to(tl.int32)
    tl.store(cut_ptr + row, decoded(cut_key, SHIFT))
    if kept < vocab:
        place = place_of_tie(
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
