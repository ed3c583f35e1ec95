"""How likely the model finds a row's token, and which are its likeliest ones, from its groups.

The row's normaliser follows from the groups alone. Read again are those that may hold one of the
likeliest, as for top-k, and those whose best is above the token, whose rank they decide.
"""

import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.sampling.bounds import bound_of_count
from paceline_kernels.sampling.groups import row_groups
from paceline_kernels.sampling.listed import list_groups, listed

_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _next_best(
    last,
    last_column,
    logits_ptr,
    list_ptr,
    num_listed,
    vocab,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
):
    """The largest logit below the last one, and its column; of equal ones the next column."""
    best = tl.full([], float("-inf"), dtype=tl.float32)
    column = vocab - 1
    for first in range(0, num_listed, BATCH):
        x, columns, _ = listed(logits_ptr, list_ptr, num_listed, first, vocab, GROUP, BATCH)
        is_after = (x < last) | ((x == last) & (columns > last_column))
        x = tl.where(is_after & (columns < vocab), x, float("-inf"))
        here = tl.max(tl.max(x, axis=1), axis=0)
        columns = tl.where(x == here, columns, 0x7FFFFFFF)
        first_column = tl.min(tl.min(columns, axis=1), axis=0)
        column = tl.where(here > best, first_column, column)
        best = tl.maximum(here, best)
    return best, column


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=["tokens_ptr"])
def _likelihood_kernel(
    logits_ptr,
    tokens_ptr,
    best_ptr,
    sums_ptr,
    list_ptr,
    out_ptr,  # [rows, 2 + 2 * num_top] float32
    vocab,
    num_groups,
    num_top,
    GROUP: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BATCH: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Write the log-probabilities and the rank of one row."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    row_list_ptr = list_ptr + row * num_groups
    row_out_ptr = out_ptr + row * (2 + 2 * num_top)
    groups = tl.arange(0, NUM_GROUPS)
    is_group = groups < num_groups
    at = row * num_groups + groups
    best, peak, is_broken = row_groups(best_ptr + at, is_group)
    peak = tl.where(is_broken, 0.0, peak)
    sums = tl.where(is_broken, 0.0, tl.load(sums_ptr + at, mask=is_group, other=0.0))
    total = tl.sum(sums * tl.exp(tl.minimum(best - peak, 0.0)), axis=0)
    normaliser = peak + tl.log(tl.maximum(total, 1e-37))  # of a broken row nothing matters
    token = tl.maximum(tl.load(tokens_ptr + row), 0)
    chosen = tl.load(row_ptr + token).to(tl.float32)

    bound = tl.full([], _LOWEST, dtype=tl.float32)
    if num_top <= num_groups:
        bound = bound_of_count(best, peak, tl.maximum(num_top, 1))
    is_listed = (best > chosen) | (best >= bound)
    num_listed = list_groups(groups, is_listed & is_group, row_list_ptr)

    above = tl.zeros([BATCH], dtype=tl.int32)
    for first in range(0, num_listed, BATCH):
        x, _, _ = listed(row_ptr, row_list_ptr, num_listed, first, vocab, GROUP, BATCH)
        above += tl.sum((x > chosen).to(tl.int32), axis=1)
    tl.store(row_out_ptr, chosen - normaliser)
    tl.store(row_out_ptr + 1, (tl.sum(above, axis=0) + 1).to(tl.float32))

    last = tl.full([], float("inf"), dtype=tl.float32)
    column = tl.full([], -1, dtype=tl.int32)
    for place in range(num_top):
        last, column = _next_best(
            last, column, row_ptr, row_list_ptr, num_listed, vocab, GROUP, BATCH
        )
        tl.store(row_out_ptr + 2 + place, last - normaliser)
        tl.store(row_out_ptr + 2 + num_top + place, column.to(tl.float32))
