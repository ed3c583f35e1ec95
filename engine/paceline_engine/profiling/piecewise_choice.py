"""Which sizes of steps use piecewise graphs: those that are measured to be faster with them.

A size is measured at the shortest step that is padded to it, where padding costs the most. Sizes
are tried upwards, as graphs gain least where a step takes the device long; sizes that the time does
not suffice for are computed op by op.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

WORTH_IT = 0.95
"""Share of the time op by op: less gain is noise."""
BUDGET_S = 3.0
_ROUNDS = 3

_log = logging.getLogger(__name__)

SecondsOf = Callable[[int], Sequence[float] | None]
"""Runs steps of so many tokens; gives what each took, or None where the engine holds none."""


class SwitchableGraphs(Protocol):
    """Graphs of several sizes, of which some are used."""

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of tokens, ascending."""
        ...

    def enable(self, sizes: Sequence[int]) -> None:
        """Use these sizes alone, until the next call."""
        ...


@dataclass(frozen=True, slots=True)
class SizeTimes:
    """One size's steps, in seconds each."""

    piecewise: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def share(self) -> float:
        """The time with graphs as a share of that op by op."""
        return median(self.piecewise) / median(self.eager)


def worth_it(times: Mapping[int, SizeTimes]) -> tuple[int, ...]:
    """Return the sizes at which graphs take clearly less time, ascending."""
    return tuple(size for size in sorted(times) if times[size].share <= WORTH_IT)


def measure(
    graphs: SwitchableGraphs,
    seconds_of: SecondsOf,
    *,
    clock: Callable[[], float],
    budget_s: float = BUDGET_S,
) -> dict[int, SizeTimes]:
    """Time both ways of each size, in turn, until `budget_s` seconds have passed.

    No size is begun after that, so one more than it allows is the most. Afterwards none is enabled.
    """
    began = clock()
    times: dict[int, SizeTimes] = {}
    for shorter, size in zip((0, *graphs.sizes), graphs.sizes, strict=False):
        if clock() - began >= budget_s:
            break
        found = _both_ways(graphs, size, shorter + 1, seconds_of)
        if found is not None:
            times[size] = found
    graphs.enable(())
    return times


def _both_ways(
    graphs: SwitchableGraphs, size: int, num_tokens: int, seconds_of: SecondsOf
) -> SizeTimes | None:
    """Time both ways; a first round pays for what is compiled or taken once, and does not count."""
    ways: tuple[tuple[int, ...], ...] = ((size,), ())
    seconds: tuple[list[float], ...] = ([], [])
    for number in range(_ROUNDS + 1):
        for enabled, taken in zip(ways, seconds, strict=True):
            graphs.enable(enabled)
            took = seconds_of(num_tokens)
            if took is None:
                return None
            if number:
                taken.extend(took)
    return SizeTimes(*map(tuple, seconds))


def choose_sizes(
    graphs: SwitchableGraphs, seconds_of: SecondsOf, *, clock: Callable[[], float]
) -> tuple[int, ...]:
    """Measure, choose the sizes that are kept, and log them in one sentence."""
    began = clock()
    times = measure(graphs, seconds_of, clock=clock)
    chosen = worth_it(times)
    shares = ", ".join(f"{size}: {one.share:.2f}" for size, one in times.items())
    _log.info(
        "steps with prompts or drafts use piecewise graphs at up to %s tokens; "
        "time over that of op by op (%s), measured in %.1f s",
        ", ".join(map(str, chosen)) or "no",
        shares or "none could be had",
        clock() - began,
    )
    return chosen
