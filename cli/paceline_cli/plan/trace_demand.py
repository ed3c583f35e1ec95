"""What a trace asks for: its mix of lengths, its peak, and how far both waver."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline_cli.traffic.traces import TracedRequest
from paceline_tuner.demand import Demand

Tokens = npt.NDArray[np.float64]

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


def mix(requests: Sequence[TracedRequest], objective: float = 0.99) -> Demand:
    """The lengths of these requests, offered as fast as a pod can take them."""
    return _demand(*_lengths(requests), objective)


@dataclass(frozen=True, slots=True)
class LengthBlocks:
    """The lengths of a stretch by block, to draw its mix anew."""

    blocks: tuple[tuple[Tokens, Tokens], ...]
    """Prompt and output of each request."""

    @classmethod
    def of(cls, stretch: Stretch) -> "LengthBlocks":
        """Cut as `redrawn` does."""
        return cls(tuple(_lengths(block) for block in _blocks(stretch, _BLOCKS)))

    def redrawn_mix(self, random: Random, objective: float = 0.99) -> Demand:
        """Draw as many blocks anew, and measure their mix."""
        count = len(self.blocks)
        drawn = [self.blocks[random.randrange(count)] for _ in range(count)]
        prompts, outputs = (np.concatenate(tokens) for tokens in zip(*drawn, strict=True))
        if not len(prompts):
            prompts, outputs = (np.concatenate(each) for each in zip(*self.blocks, strict=True))
        return _demand(prompts, outputs, objective)


def _lengths(requests: Sequence[TracedRequest]) -> tuple[Tokens, Tokens]:
    prompts = np.array([request.prompt for request in requests], np.float64)
    return prompts, np.array([request.output for request in requests], np.float64)


def _demand(prompts: Tokens, outputs: Tokens, objective: float) -> Demand:
    count, made, held = len(prompts), float(outputs.sum()), prompts + outputs
    return Demand(
        arrival_rps=_FULL_LOAD_RPS,
        prompt=float(prompts.mean()),
        prompt_p99=float(np.partition(prompts, place := int(0.99 * (count - 1)))[place]),
        output=made / count,
        output_high=float(np.quantile(outputs, objective, method="inverted_cdf")),
        context=float((outputs * (prompts + outputs / 2)).sum()) / made,
        held=float(held.mean()),
        held_deviation=float(held.std(ddof=1)) if count > 1 else 0.0,
        whole_prompt_deviation=float(prompts.std(ddof=1)) if count > 1 else 0.0,
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
    kept = _blocks(stretch, blocks)
    count, block_s = len(kept), stretch.seconds / len(kept)
    drawn: list[TracedRequest] = []
    for place in range(count):
        source = random.randrange(count)
        shift_s = (place - source) * block_s
        # Not `replace`, which takes four times as long: millions are drawn.
        drawn += [TracedRequest(r.at_s + shift_s, r.prompt, r.output) for r in kept[source]]
    return Stretch(tuple(drawn) or stretch.requests, stretch.seconds)


def _blocks(stretch: Stretch, blocks: int) -> list[list[TracedRequest]]:
    """Cut a stretch into about so many, none of them very short or long."""
    block_s = min(max(stretch.seconds / blocks, _LEAST_BLOCK_S), _MOST_BLOCK_S, stretch.seconds)
    count = max(1, round(stretch.seconds / block_s))
    kept: list[list[TracedRequest]] = [[] for _ in range(count)]
    for request in stretch.requests:
        kept[min(int(request.at_s * count / stretch.seconds), count - 1)].append(request)
    return kept


def redrawn_rate(busiest: Stretch, random: Random) -> float:
    """Arrivals per second of the busiest minute, had its parts come in another measure."""
    return redrawn(busiest, random, blocks=_PEAK_BLOCKS).rps


def share(stretch: Stretch, replicas: int, index: int) -> tuple[TracedRequest, ...]:
    """What one of `replicas` pods is sent, taking turns."""
    return stretch.requests[index::replicas]


def _moved(requests: Sequence[TracedRequest], start_s: float, seconds: float) -> Stretch:
    moved = (replace(request, at_s=request.at_s - start_s) for request in requests)
    return Stretch(tuple(moved), seconds)
