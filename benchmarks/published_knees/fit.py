"""Fit a device to published figures: one parameter after the other, in ever smaller steps."""

import math
from collections.abc import Callable, Sequence
from typing import Final

_STEPS: Final = (0.1, 0.04, 0.015)
_ROUNDS: Final = 3


def off(simulated: Sequence[float], published: Sequence[float]) -> float:
    """Return the root mean square of the logarithms by which figures differ."""
    logs = [math.log(s / p) for s, p in zip(simulated, published, strict=True)]
    return math.sqrt(sum(log * log for log in logs) / len(logs))


def fitted(
    start: tuple[float, ...], error: Callable[[tuple[float, ...]], float]
) -> tuple[float, ...]:
    """Find parameters with a small error near `start`. Deterministic if `error` is."""
    best, least = start, error(start)
    for step in _STEPS:
        for _ in range(_ROUNDS):
            before = least
            for place in range(len(best)):
                for factor in (1 + step, 1 / (1 + step)):
                    tried = (*best[:place], best[place] * factor, *best[place + 1 :])
                    found = error(tried)
                    if found < least:
                        best, least = tried, found
            if least == before:
                break
    return tuple(float(f"{value:.4g}") for value in best)
