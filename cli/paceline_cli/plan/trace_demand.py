"""What a trace asks for: its mix of lengths, its peak, and how far both waver."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from paceline_cli.traffic.traces import TracedRequest
from paceline_tuner.demand import Demand

PEAK_S: Final = 60.0
_BLOCKS: Final = 40
"""A trace is cut into about so many, which are drawn again: bursts stay whole within a block."""
_LEAST_BLOCK_S: Final = 5.0
_MOST_BLOCK_S: Final = 60.0
_PEAK_BLOCKS: Final = 12
_FULL_LOAD_RPS: Final = 1e9
"""Prompts come as fast as sequences end: what limits are for."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace that starts at 0."""

    requests: tuple[TracedRequest, ...]
    seconds: float

    @property
    def rps(self) -> float:
        """Mean arrivals per second."""
        return len(self.requests) / self.seconds


def mix(requests: Sequence[TracedRequest]) -> Demand:
    """The lengths of these requests, offered as fast as a pod can take them."""
    count = len(requests)
    outputs = sum(r.output for r in requests)
    held = [r.prompt + r.output for r in requests]
    mean_held = sum(held) / count
    spread = sum((tokens - mean_held) ** 2 for tokens in held) / max(count - 1, 1)
    prompts = sorted(r.prompt for r in requests)
    return Demand(
        arrival_rps=_FULL_LOAD_RPS,
        prompt=sum(prompts) / count,
        prompt_p99=float(prompts[int(0.99 * (count - 1))]),
        output=outputs / count,
        context=sum(r.output * (r.prompt + r.output / 2) for r in requests) / outputs,
        held=mean_held,
        held_deviation=spread**0.5,
    )


def peak(requests: Sequence[TracedRequest], window_s: float = PEAK_S) -> Stretch:
    """Cut out the busiest `window_s` of requests that come in order; all of a shorter trace."""
    window_s = min(window_s, requests[-1].at_s - requests[0].at_s)
    times = [r.at_s for r in requests]
    ends = [bisect_left(times, at + window_s) for at in times]
    first = max(range(len(times)), key=lambda index: ends[index] - index)
    return _moved(requests[first : ends[first]], times[first], window_s)


def around_peak(requests: Sequence[TracedRequest], most: int) -> Stretch:
    """Cut out the busiest stretch, as long as may be, that holds at most `most` requests."""
    span_s = requests[-1].at_s - requests[0].at_s
    if len(requests) <= most:
        return _moved(requests, requests[0].at_s, span_s)
    window_s = span_s
    while True:
        window_s *= 0.8
        found = peak(requests, window_s)
        if len(found.requests) <= most:
            return found


def redrawn(stretch: Stretch, random: Random, *, blocks: int = _BLOCKS) -> Stretch:
    """Draw a stretch of the same length anew, from blocks of this one (a block bootstrap)."""
    block_s = min(max(stretch.seconds / blocks, _LEAST_BLOCK_S), _MOST_BLOCK_S, stretch.seconds)
    count = max(1, round(stretch.seconds / block_s))
    block_s = stretch.seconds / count
    kept: list[list[TracedRequest]] = [[] for _ in range(count)]
    for request in stretch.requests:
        kept[min(int(request.at_s / block_s), count - 1)].append(request)
    drawn: list[TracedRequest] = []
    for place in range(count):
        source = random.randrange(count)
        shift_s = (place - source) * block_s
        # Not `replace`, which takes four times as long: millions are drawn.
        drawn += [TracedRequest(r.at_s + shift_s, r.prompt, r.output) for r in kept[source]]
    return Stretch(tuple(drawn) or stretch.requests, stretch.seconds)


def redrawn_rate(busiest: Stretch, random: Random) -> float:
    """Arrivals per second of the busiest minute, had its parts come in another measure."""
    return redrawn(busiest, random, blocks=_PEAK_BLOCKS).rps


def share(stretch: Stretch, replicas: int, index: int) -> tuple[TracedRequest, ...]:
    """What one of `replicas` pods is sent, taking turns."""
    return stretch.requests[index::replicas]


def _moved(requests: Sequence[TracedRequest], start_s: float, seconds: float) -> Stretch:
    moved = (replace(request, at_s=request.at_s - start_s) for request in requests)
    return Stretch(tuple(moved), seconds)
