"""What the fitted line misses: a slow minute, a tile of tokens, and the tail.

t^ = fast * correction[T // 128] * t(x)          q_r = 0.95 quantile of measured / t^
"""

from collections import deque

import numpy as np

BIN_TOKENS = 128
_MIN_VISITS = 15  # before a bin's correction is used
_CORRECTION_RATE = 0.02
_CORRECTION_RANGE = (0.7, 1.5)
_FAST_RATE = 1 / 30  # steps
_NEAR_END = (0.75, 1.85)
_LEVEL_STEPS = 30
_SETTLED = (0.85, 1.2)
_FAST_RANGE = (0.7, 2.0)
_MAX_RATIO = 1.5  # one stalled step must not pull the level
_PINNED_STEPS = 30  # at the end of its range for so long, `fast` no longer explains the level
_WINDOW = 1000
_REFRESH_STEPS = 20
_COLD_Q_R = 1.3
_YOUNG_Q_R = 1.1
_YOUNG_STEPS = 200
_QUANTILE = 0.95


class Residuals:
    """Follows measured / predicted, step by step."""

    __slots__ = (
        "_correction",
        "_pending",
        "_pinned",
        "_ratios",
        "_steps",
        "_used",
        "_visits",
        "fast",
        "lowest",
        "mape",
        "q_r",
    )

    def __init__(self, max_tokens: int) -> None:
        """Correct nothing yet; steps hold up to `max_tokens`."""
        bins = max_tokens // BIN_TOKENS + 1
        self._correction = [1.0] * bins
        self._visits = [0] * bins
        self._used = [1.0] * bins
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        self._pending = 0
        self._pinned = 0
        self._steps = 0
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
        """What the line is multiplied by: fast * correction[bin]."""
        return self.fast * self._used[min(tokens // BIN_TOKENS, len(self._used) - 1)]

    def is_known(self, tokens: int) -> bool:
        """The correction of this size is in use, not assumed."""
        return self._visits[min(tokens // BIN_TOKENS, len(self._visits) - 1)] >= _MIN_VISITS

    def learn(self, tokens: int, measured_ms: float, line_ms: float) -> float:
        """Follow one step; measured / t^ as it was predicted."""
        place = min(tokens // BIN_TOKENS, len(self._used) - 1)
        ratio = measured_ms / (self.factor(tokens) * line_ms)
        bounded = min(max(ratio, 1 / _MAX_RATIO), _MAX_RATIO)
        self._correct(place, bounded)
        self.fast = _clip(self.fast * (1 + _FAST_RATE * (bounded - 1)), _FAST_RANGE)
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
        """The level left the range that a passing cause explains: the line itself is wrong."""
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
        """Judge a new line by recent steps: (tokens, measured ms, line ms), oldest first."""
        self._ratios.clear()
        self.fast = 1.0
        levels = [measured / (line * self.factor(tokens)) for tokens, measured, line in steps]
        if levels:
            self.fast = _clip(float(np.median(levels[:_LEVEL_STEPS])), _FAST_RANGE)
        # As they would have been predicted one after the other: against one level for all, what
        # the level itself wavers by would pass for noise of the steps.
        for level in levels:
            self._ratios.append(self._follow(level))
        self._refresh()

    def _follow(self, level: float) -> float:
        """Let the level follow one step, corrected measured / line; measured / t^ of that step."""
        ratio = level / self.fast
        bounded = _clip(ratio, (1 / _MAX_RATIO, _MAX_RATIO))
        self.fast = _clip(self.fast * (1 + _FAST_RATE * (bounded - 1)), _FAST_RANGE)
        return ratio

    def _correct(self, place: int, ratio: float) -> None:
        # While the common level moves, that is for `fast` alone to follow.
        if not _SETTLED[0] < self.fast < _SETTLED[1]:
            return
        self._visits[place] += 1
        moved = self._correction[place] * (1 + _CORRECTION_RATE * (ratio - 1))
        self._correction[place] = _clip(moved, _CORRECTION_RANGE)
        if self._visits[place] >= _MIN_VISITS:
            self._used[place] = self._correction[place]
            self.lowest = min(self._used)

    def _refresh(self) -> None:
        self._pending = 0
        if len(self._ratios) < _REFRESH_STEPS:
            return
        ratios = np.array(self._ratios)
        self.mape = float(np.mean(np.abs(ratios - 1.0)))
        floor = _YOUNG_Q_R if self._steps < _YOUNG_STEPS else 1.0
        self.q_r = max(float(np.quantile(ratios, _QUANTILE)), floor)


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
