"""Which sizes of steps are computed from recorded pieces: those that are faster so, measured.

A size is measured at the shortest step that is padded to it, where padding costs the most. Sizes
are tried upwards, as pieces gain least where a step takes the device long; what the time does not
suffice for is computed op by op.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

WORTH_IT = 0.95
"""Of the time op by op: less gain is noise."""
BUDGET_S = 3.0
_ROUNDS = 3

_log = logging.getLogger(__name__)

SecondsOf = Callable[[int], Sequence[float] | None]
"""Runs steps of so many tokens; what each took, or None where the engine cannot hold one."""


class Pieces(Protocol):
    """What was recorded."""

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of tokens, ascending."""
        ...

    def serve(self, sizes: Sequence[int]) -> None:
        """Serve steps of these sizes alone, until told otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """One size's steps, in seconds each."""

    in_pieces: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def share(self) -> float:
        """Of the time op by op."""
        return median(self.in_pieces) / median(self.eager)


def worth_it(times: Mapping[int, Times]) -> tuple[int, ...]:
    """Sizes at which pieces take clearly less time, ascending."""
    return tuple(size for size in sorted(times) if times[size].share <= WORTH_IT)


def measure(
    pieces: Pieces,
    seconds_of: SecondsOf,
    *,
    clock: Callable[[], float],
    budget_s: float = BUDGET_S,
) -> dict[int, Times]:
    """Time both ways of each size, in turn, until `budget_s` seconds have passed.

    No size is begun after that, so one more than it allows is the most. Nothing is served after.
    """
    began = clock()
    times: dict[int, Times] = {}
    for shorter, size in zip((0, *pieces.sizes), pieces.sizes, strict=False):
        if clock() - began >= budget_s:
            break
        found = _both_ways(pieces, size, shorter + 1, seconds_of)
        if found is not None:
            times[size] = found
    pieces.serve(())
    return times


def _both_ways(pieces: Pieces, size: int, num_tokens: int, seconds_of: SecondsOf) -> Times | None:
    """A first round pays for what is compiled or taken once, and is not counted."""
    ways: tuple[tuple[int, ...], ...] = ((size,), ())
    seconds: tuple[list[float], ...] = ([], [])
    for number in range(_ROUNDS + 1):
        for served, taken in zip(ways, seconds, strict=True):
            pieces.serve(served)
            took = seconds_of(num_tokens)
            if took is None:
                return None
            if number:
                taken.extend(took)
    return Times(*map(tuple, seconds))


def choose(pieces: Pieces, seconds_of: SecondsOf, *, clock: Callable[[], float]) -> tuple[int, ...]:
    """Measure, and choose the sizes that are to be kept; says so in one sentence."""
    began = clock()
    times = measure(pieces, seconds_of, clock=clock)
    chosen = worth_it(times)
    shares = ", ".join(f"{size}: {one.share:.2f}" for size, one in times.items())
    _log.info(
        "steps with prompts or drafts are computed in recorded pieces at up to %s tokens; "
        "time over that of op by op (%s), measured in %.1f s",
        ", ".join(map(str, chosen)) or "no",
        shares or "none could be had",
        clock() - began,
    )
    return chosen
