"""Residuals: corrects the fitted line by recent drift, by token bin, and by the previous step.

t^ = fast * correction[(T - 1) // w] * n * t(x)          q_r = 0.95 quantile of measured / t^

`fast` is the level of the last steps, n what the step before says of the next (`Autocorrelation`).
Bins are w tokens wide and end where a full tile does: 128 on a GPU, 4 on a CPU.
"""

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from paceline_wire.step_cost import correction_bin

BIN_TOKENS = 128
_MAX_BINS = 256  # the last one holds all that is larger
_MIN_VISITS = 15  # before a bin is known
_FIRST_VISITS = 3  # before its correction is used
_UNSEEN_WORTH = 5  # visits: weight of the neutral correction 1 while a bin has few of its own
_CORRECTION_RATE = 0.02
_CORRECTION_RANGE = (0.7, 1.5)
_FAST_RATE = 1 / 30  # steps
_NEAR_END = (0.75, 1.85)
_LEVEL_STEPS = 30
_SETTLED = (0.85, 1.2)
_FAST_RANGE = (0.7, 2.0)
_BELIEVED = (1 / 1.5, 1.5)  # one stalled step must not pull the level
_PINNED_STEPS = 30  # at the end of its range for so long, `fast` no longer explains the level
_WINDOW = 1000
_REFRESH_STEPS = 20
_COLD_Q_R = 1.3
_YOUNG_Q_R = 1.1
_YOUNG_STEPS = 200
_CLEARLY = 0.9  # of the error: less of a difference is chance
_QUANTILE = 0.95
_ENOUGH_NEIGHBOURS = 100  # steps
_NEIGHBOURS = 500  # steps
_MOST_RHO = 0.9
_DEVIATIONS = 3.0


class Residuals:
    """Follows measured / predicted, step by step."""

    __slots__ = (
        "_correction",
        "_neighbours",
        "_pending",
        "_pinned",
        "_ratios",
        "_steps",
        "_used",
        "_visits",
        "bin_tokens",
        "fast",
        "lowest",
        "mape",
        "q_r",
    )

    def __init__(self, max_tokens: int, bin_tokens: int = BIN_TOKENS) -> None:
        """Correct nothing yet; steps hold up to `max_tokens`."""
        self.bin_tokens = bin_tokens
        bins = min(max_tokens // bin_tokens + 1, _MAX_BINS)
        self._correction = [1.0] * bins
        self._visits = [0] * bins
        self._used = [1.0] * bins
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        self._pending = 0
        self._pinned = 0
        self._steps = 0
        self._neighbours = Autocorrelation()
        self.fast = 1.0
        self.lowest = 1.0
        """The least correction in use."""
        self.q_r = _COLD_Q_R
        self.mape = 0.0

    @property
    def correction(self) -> list[float]:
        """Factor per bin; 1 where it has not been visited enough."""
        return self._used

    def factor(self, tokens: int) -> float:
        """What the line is multiplied by: fast * correction[bin] * n."""
        return self.fast * self._used[self._place(tokens)] * self._neighbours.factor

    def correction_of(self, tokens: int) -> float:
        """The correction of this size: what such steps take, over what the line predicts."""
        return self._used[self._place(tokens)]

    @property
    def least(self) -> float:
        """The least factor of any size."""
        return self.fast * self.lowest * self._neighbours.factor

    def is_known(self, tokens: int) -> bool:
        """The correction of this size is in use, not assumed."""
        return self._visits[self._place(tokens)] >= _MIN_VISITS

    def learn(self, tokens: int, measured_ms: float, line_ms: float) -> float:
        """Follow one step; measured / t^ as it was predicted."""
        place = self._place(tokens)
        (ratio,) = self._follow([measured_ms / (self._used[place] * line_ms)])
        # The correction learns the ratio without the common level, which no size causes.
        self._correct(place, _clip(ratio, _BELIEVED))
        is_at_end = not _NEAR_END[0] < self.fast < _NEAR_END[1]
        self._pinned = self._pinned + 1 if is_at_end else max(0, self._pinned - 3)
        self._ratios.append(ratio)
        self._steps += 1
        self._pending += 1
        if self._pending >= _REFRESH_STEPS:
            self._refresh()
        return ratio

    @property
    def is_lost(self) -> bool:
        """Whether the level is too far off for a passing cause: then the line itself is wrong."""
        return self._pinned >= _PINNED_STEPS

    def seed(self, correction: list[float]) -> None:
        """Begin with corrections that were learned elsewhere."""
        for place, factor in enumerate(correction[: len(self._used)]):
            self._correction[place] = _clip(factor, _CORRECTION_RANGE)
            self._visits[place] = _MIN_VISITS
        self._used = list(self._correction)
        self.lowest = min(self._used)

    def forget(self) -> None:
        """Drop the corrections: they belong to an engine that is no longer there."""
        self._pinned = 0
        self._visits = [0] * len(self._visits)
        self._correction = [1.0] * len(self._correction)
        self._used = list(self._correction)
        self.lowest = 1.0

    def restart(self, steps: list[tuple[int, float, float]]) -> None:
        """Judge a new line by recent steps, oldest first: (tokens, measured ms, line ms)."""
        self._ratios.clear()
        self.fast = 1.0
        self._neighbours = Autocorrelation()
        levels = [measured / line for _, measured, line in steps]
        corrected = [
            measured / (line * self.correction_of(tokens)) for tokens, measured, line in steps
        ]
        # The corrections were learned against the line before: a line that has learned the same
        # would count it twice.
        if steps and _spread(levels) < _CLEARLY * _spread(corrected):
            self.forget()
        else:
            levels = corrected
        if levels:
            self.fast = _clip(float(np.median(levels[:_LEVEL_STEPS])), _FAST_RANGE)
        # As they would have been predicted one after the other: against one level for all, what
        # the level itself wavers by would pass for noise of the steps.
        self._ratios.extend(self._follow(levels))
        self._refresh()

    def _place(self, tokens: int) -> int:
        return correction_bin(tokens, self.bin_tokens, len(self._used))

    def _follow(self, levels: list[float]) -> list[float]:
        """Follow steps, given their corrected measured / line; return their measured / t^."""
        fast = self.fast
        before, after = [], []
        for level in levels:
            before.append(fast)
            believed = _clip(level / fast, _BELIEVED)
            fast = _clip(fast * (1 + _FAST_RATE * (believed - 1)), _FAST_RANGE)
            after.append(believed * before[-1] / fast)
        self.fast = fast
        factors = self._neighbours.observe(after)
        return [
            level / (level_before * factor)
            for level, level_before, factor in zip(levels, before, factors, strict=True)
        ]

    def _correct(self, place: int, ratio: float) -> None:
        # While the common level moves, that is for `fast` alone to follow.
        if not _SETTLED[0] < self.fast < _SETTLED[1]:
            return
        self._visits[place] += 1
        rate = _CORRECTION_RATE
        if _BELIEVED[0] < ratio < _BELIEVED[1]:  # not of a stall
            rate = max(rate, 1 / (_UNSEEN_WORTH + self._visits[place]))
        moved = self._correction[place] * (1 + rate * (ratio - 1))
        self._correction[place] = _clip(moved, _CORRECTION_RANGE)
        if self._visits[place] >= _FIRST_VISITS:
            self._used[place] = self._correction[place]
            self.lowest = min(self._used)

    def _refresh(self) -> None:
        self._pending = 0
        if len(self._ratios) < _REFRESH_STEPS:
            return
        ratios = np.fromiter(self._ratios, dtype=np.float64, count=len(self._ratios))
        self.mape = float(np.mean(np.abs(ratios - 1.0)))
        floor = _YOUNG_Q_R if self._steps < _YOUNG_STEPS else 1.0
        self.q_r = max(_quantile(ratios, _QUANTILE), floor)


def _quantile(values: npt.NDArray[np.float64], share: float) -> float:
    """`np.quantile`, to the last bit, at a third of its time: steps wait for it."""
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    parted = np.partition(values, (below, above))
    low, high, part = float(parted[below]), float(parted[above]), place - below
    # As NumPy interpolates: from the nearer end.
    step = high - low
    return low + step * part if part < 0.5 else high - step * (1 - part)  # noqa: PLR2004


def _spread(ratios: list[float]) -> float:
    """Mean relative error once the level is taken out."""
    values = np.array(ratios)
    return float(np.mean(np.abs(values / np.median(values) - 1.0)))


def _clip(value: float, bounds: tuple[float, float]) -> float:
    # Twice as fast as min() and max(): a new line is judged by 600 steps while the next one waits.
    low, high = bounds
    if value < low:
        return low
    if value > high:
        return high
    return value


class Autocorrelation:
    """How far a slow step foretells the next: whatever makes a step slow seldom ends with it.

    x    = log of measured / (fast * correction * line)
    rho  = E[x * x'] / E[x'^2] of neighbouring steps, over about 500 of them, within [0, 0.9]
    n    = exp(rho * x)

    A step further than three deviations from 0 is a stall, which ends with it and foretells
    nothing; the second of two in a row is a change of level, and counts as three deviations.
    """

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

    def observe(self, ratios: list[float]) -> list[float]:
        """Follow steps, each measured over what level, size and line foresee.

        Returns the factor that each was expected with: what those before it had foretold.
        """
        steps, last, was_far = self._steps, self._last, self._was_far
        product, square, factor = self._product, self._square, self.factor
        expected = []
        for ratio in ratios:
            expected.append(factor)
            x = math.log(ratio)
            if steps >= _ENOUGH_NEIGHBOURS:
                bound = _DEVIATIONS * math.sqrt(square)
                is_far = abs(x) > bound
                x = _clip(x, (-bound, bound)) if was_far or not is_far else 0.0
                was_far = is_far
            steps += 1
            rate = 1 / min(steps, _NEIGHBOURS)
            product += rate * (x * last - product)
            square += rate * (x * x - square)
            last = x
            if steps >= _ENOUGH_NEIGHBOURS and square > 0.0:
                factor = math.exp(_clip(product / square, (0.0, _MOST_RHO)) * x)
        self._steps, self._last, self._was_far = steps, last, was_far
        self._product, self._square, self.factor = product, square, factor
        return expected
