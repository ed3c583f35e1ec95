"""Which sizes of mixed steps are replayed from graphs: those that are measured to be faster.

A size is measured at the shortest step that is padded to it, where padding costs the most. Graphs
gain less the longer a step takes the device, so the largest size with a gain is looked for by
halving, and every size up to it is used: a new machine compiles and takes memory in the first of
each size's steps, and a start has no time for all of them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

WORTH_IT = 0.95
"""Graphs are used below this share of the op-by-op time: a smaller gain is noise."""
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

    replayed: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def share(self) -> float:
        """The time with graphs as a share of that op by op."""
        return median(self.replayed) / median(self.eager)


def worth_it(sizes: Sequence[int], times: Mapping[int, SizeTimes]) -> tuple[int, ...]:
    """Return the sizes, ascending, up to the largest at which graphs take clearly less time.

    One that was measured without a gain is left out.
    """
    gains = {size for size, one in times.items() if one.share <= WORTH_IT}
    most = max(gains, default=0)
    return tuple(size for size in sizes if size <= most and (size in gains or size not in times))


def measure(
    graphs: SwitchableGraphs,
    seconds_of: SecondsOf,
    *,
    clock: Callable[[], float],
    budget_s: float = BUDGET_S,
) -> dict[int, SizeTimes]:
    """Time both ways of some sizes, in turn, until the largest with a gain is known.

    No size is begun after `budget_s` seconds, so one more than they allow is the most; one that the
    engine cannot hold counts as without a gain. Afterwards none is enabled.
    """
    began = clock()
    times: dict[int, SizeTimes] = {}
    low, high = 0, len(graphs.sizes)  # below one there is a gain, from the other on there is none
    while low < high and clock() - began < budget_s:
        middle = (low + high) // 2
        shorter = graphs.sizes[middle - 1] if middle else 0
        size = graphs.sizes[middle]
        found = _both_ways(graphs, size, shorter + 1, seconds_of)
        if found is not None:
            times[size] = found
        if found is not None and found.share <= WORTH_IT:
            low = middle + 1
        else:
            high = middle
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
    chosen = worth_it(graphs.sizes, times)
    shares = ", ".join(f"{size}: {times[size].share:.2f}" for size in sorted(times))
    _log.info(
        "steps with prompts or drafts are replayed from graphs at up to %s tokens; "
        "time over that of op by op (%s), measured in %.1f s",
        ", ".join(map(str, chosen)) or "no",
        shares or "none could be had",
        clock() - began,
    )
    return chosen
