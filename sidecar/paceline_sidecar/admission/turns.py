"""When a waiting request has its turn: as it came, or short prompts first with ageing.

A turn is a time, and those that wait in a lane are computed in the order of their turns. All age
alike, so the order of two requests never changes, and nobody is overtaken by a request that comes
later than its own turn: a flood of short prompts delays a long one by what comes in that time.
"""

from typing import Literal

OrderKind = Literal["Fifo", "ShortestFirst"]

_TIMES_ITS_OWN = 4.0
"""A prompt may be overtaken for this many times its own prefill time.

Fewer times win less under overload, more refuse more of the longest prompts
(benchmarks/results/order/order.md).
"""


def turn_at(arrived_at: float, *, tokens: int, rate: float | None, patience_s: float) -> float:
    """Return when a prompt has its turn where short ones go first, on the clock of `arrived_at`.

    `rate` are the prompt tokens that the pod computes in a second, None where nobody has waited of
    late: then prompts go as they come. The turn is less than `patience_s` after the arrival.
    """
    if rate is None or patience_s <= 0:
        return arrived_at
    own_s = _TIMES_ITS_OWN * tokens / rate
    return arrived_at + own_s / (1 + own_s / patience_s)
