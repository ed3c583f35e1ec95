"""Balance: the step target at which late gaps and late first tokens cost least together. Pure.

Longer steps serve more requests, so fewer wait too long for their first token; and more of their
gaps are late. With r = what steps may take / ITL target,

    late(r)    = 1 - Phi((ln q_r - ln r) / s)            s = 1.4 * ln q_r / 1.645
    missed(r)  = P(Poisson(n * late(r)) > max(1, n / 100))
    served(r)  = lambda*(r) / the most of any r
    r          = the largest with  served(r) * (1 - missed(r))  within 0.1 % of the most

where n is the gaps of a mean request: late gaps gather in the requests that run beside long steps,
so a request misses its one in a hundred long before one gap in a hundred is late. A step that fills
its target was chosen because it seemed to fit, and misses more often than others: 1.4 is measured
(the 99th of 100 such steps took 1.08 to 1.10 of its prediction where that of all took 1.06).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

_Z95 = 1.645
_OF_FULL_STEPS = 1.4
_LEAST_Q_R = 1.01
_STEPS_DOWN = 40
_STEP_DOWN = 0.01
_AS_GOOD = 0.999
_LATE_SHARE = 100  # gaps of which one may be late


@dataclass(frozen=True, slots=True)
class Balance:
    """The share of the target that steps may take, and what is expected of it."""

    share: float
    missed: float
    """Chance that a request misses by its gaps."""
    served: float
    """Share of its greatest capacity that the pod keeps."""


def balance(
    q_r: float, gaps: float, served: Callable[[float], float], most: float = 1.0
) -> Balance:
    """Choose among shares of the target from `most` down.

    `served` is asked by share, and never grows as the share falls.
    """
    best, found = -1.0, []
    for share in (most * (1 - _STEP_DOWN * k) for k in range(_STEPS_DOWN)):
        capacity = served(share)
        if capacity <= best:
            break  # goodput never exceeds `capacity`, and of equal shares the larger one wins
        found.append(Balance(share, missed(q_r, gaps, share), capacity))
        best = max(best, _goodput(found[-1]))
    return next(each for each in found if _goodput(each) >= _AS_GOOD * best)


def missed(q_r: float, gaps: float, share: float) -> float:
    """Give the chance that a request of so many gaps has too many late ones.

    Its steps are all planned for `share` of the target, q_r included.
    """
    spread = _OF_FULL_STEPS * math.log(max(q_r, _LEAST_Q_R)) / _Z95
    deviations = (math.log(max(q_r, _LEAST_Q_R)) - math.log(share)) / spread
    expected = gaps * 0.5 * math.erfc(deviations / math.sqrt(2))
    term = kept = math.exp(-expected)
    for k in range(1, max(1, int(gaps / _LATE_SHARE)) + 1):
        term *= expected / k
        kept += term
    return max(0.0, 1 - kept)


def _goodput(found: Balance) -> float:
    return found.served * (1 - found.missed)
