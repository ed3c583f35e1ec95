"""How far a slow step foretells the next: whatever makes a step slow seldom ends with it.

x    = log of measured / (fast * correction * line)
rho  = E[x * x'] / E[x'^2] of neighbouring steps, over about 500 of them, within [0, 0.9]
n    = exp(rho * x)

A step further than three deviations from 0 is a stall, which ends with it and foretells nothing;
the second of two in a row is a change of level, and counts as three deviations.
"""

import math

_ENOUGH = 100  # steps
_STEPS = 500
_MOST = 0.9
_DEVIATIONS = 3.0


class Autocorrelation:
    """Follows how much neighbouring steps have in common."""

    __slots__ = ("_last", "_product", "_square", "_steps", "_was_far", "factor")

    def __init__(self) -> None:
        """Foretell nothing yet."""
        self._steps = 0
        self._last = 0.0
        self._product = 0.0
        self._square = 0.0
        self._was_far = False
        self.factor = 1.0
        """What the next step is expected to take, over what it would without the last one."""

    def observe(self, ratio: float) -> None:
        """Follow one step: measured over what level, size and line foresee."""
        x = math.log(ratio)
        if self._steps >= _ENOUGH:
            bound = _DEVIATIONS * math.sqrt(self._square)
            is_far = abs(x) > bound
            x = min(max(x, -bound), bound) if self._was_far or not is_far else 0.0
            self._was_far = is_far
        self._steps += 1
        rate = 1 / min(self._steps, _STEPS)
        self._product += rate * (x * self._last - self._product)
        self._square += rate * (x * x - self._square)
        self._last = x
        if self._steps >= _ENOUGH and self._square > 0.0:
            rho = min(max(self._product / self._square, 0.0), _MOST)
            self.factor = math.exp(rho * x)
