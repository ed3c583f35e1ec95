"""The one read of all logits: what each group of 128 neighbours amounts to.

All that follows looks at the groups first, and reads again only those that matter.
"""

import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier

GROUP = 128
TILE_GROUPS = 32
"""Groups in a tile: 4096 logits, 8 KB of bfloat16."""
MIN_TEMPERATURE = 1e-4
"""Below it a row is greedy: the division would leave the range of float32."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)


@triton.jit
def is_greedy(temperature):
    """NaN is greedy too."""
    return (temperature >= _MIN_TEMPERATURE) == 0


@triton.jit
def inverse_of(temperature):
    """What a row's logits are multiplied by; a greedy row's stay as they are."""
    return tl.where(is_greedy(temperature), 1.0, 1.0 / tl.maximum(temperature, _MIN_TEMPERATURE))


@triton.jit
def row_groups(best_ptr, is_group):
    """The best of each group of a row, the best of all, and whether the row is no distribution."""
    best = tl.load(best_ptr, mask=is_group, other=float("-inf"))
    has_nan = tl.max((best != best).to(tl.int32), axis=0) > 0
    best = tl.where(best == best, best, float("-inf"))
    peak = tl.max(best, axis=0)
    return best, peak, has_nan | (tl.abs(peak) == float("inf"))


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(do_not_specialize_on_alignment=["temperatures_ptr"])
def _groups_kernel(
    logits_ptr,
    temperatures_ptr,
    best_ptr,  # [rows, groups] float32: the largest logit, NaN where one is no number
    sums_ptr,  # [rows, groups] float32: sum of exp((logit - best) / temperature)
    vocab,
    num_groups,
    GROUP: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Take a tile of one row."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * TILE_GROUPS + tl.arange(0, TILE_GROUPS)
    columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inverse = inverse_of(tl.load(temperatures_ptr + row))
    x = tl.load(logits_ptr + row * vocab + columns, mask=columns < vocab, other=float("-inf")).to(
        tl.float32
    )

    is_broken = tl.max((x != x).to(tl.int32), axis=1) > 0
    x = tl.where(x == x, x, float("-inf"))
    best = tl.max(x, axis=1)
    anchor = tl.where(tl.abs(best) < float("inf"), best, 0.0)  # no inf - inf
    sums = tl.sum(tl.exp((x - anchor[:, None]) * inverse), axis=1)

    at = row * num_groups + groups
    best = tl.where(is_broken, float("nan"), best)
    tl.store(best_ptr + at, best, mask=groups < num_groups)
    tl.store(sums_ptr + at, sums, mask=groups < num_groups)
