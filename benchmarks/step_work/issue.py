"""A model of prefill attention's loop by what its warps issue: a cross-check of `assumed`.

A round's products take `FLOPs / rate` cycles of a multiprocessor's tensor cores, at the clock that
products hold. Its other instructions take an issue slot each of one of four schedulers; those of
exponentials take eight cycles of a scheduler's share of the unit for them, at the same time. Our
loop waits for each product before it goes on, so both follow one another: `serial_share`. Stalls,
barriers and masked tiles are not in it. What others measured of such loops on an H100 (0.33 to
0.48 of the rate, `assumed.PREFILL_WGMMA`) is `OF_SERIAL` of that model, and carries them over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from step_work.assumed import Assumed

_SCHEDULERS = 4
_SPECIAL_CYCLES = 8
"""How long a warp's exponentials occupy a scheduler, which has four lanes for them."""
FLOPS_A_CYCLE: Mapping[int, int] = MappingProxyType({8: 2048, 9: 4096, 10: 8192})
"""Dense bfloat16 FLOPs of a multiprocessor in a cycle, by generation, from the data sheets."""
OF_SERIAL = Assumed(
    0.80,
    0.97,
    0.66,
    "what a loop reaches of its serial model: 0.40 (0.33 to 0.48) of an H100's rate over 0.50",
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A round of a program's loop, and how many programs a multiprocessor holds."""

    generation: int
    flops: int
    others: int
    """Instructions of a warp beside its products."""
    special: int
    num_warps: int


def serial_share(loop: Loop, clock_share: float) -> float:
    """Return the share of the tensor rate where nothing of a program overlaps its products.

    `clock_share`: what the best of all products reaches of the rate.
    """
    products = loop.flops / FLOPS_A_CYCLE[loop.generation]
    warps = loop.num_warps / _SCHEDULERS
    others = warps * max(loop.others, _SPECIAL_CYCLES * loop.special)
    return products / (products / clock_share + others)
