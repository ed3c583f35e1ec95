"""The published loads: users who ask again and again, and requests at a rate."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK
from published_knees.pod import Fleet, Serving
from tune_report.arrivals import arrivals, constant
from tune_report.mixes import Mix

COME_BACK_S: Final = 10.0
"""After how long a refused user asks again."""
_A_STEP: Final = 1e-6
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Served:
    """What came of the requests that count.

    Of users those count that ended in the measured time, of a rate all.
    """

    seconds: float
    ttft_ms: Floats
    """Of each; nan where it was refused or had no end."""
    tpot_ms: Floats
    output: npt.NDArray[np.int64]
    tokens_per_s: float
    """All that were generated in the measured time."""
    limits: list[tuple[float, int, int]]


async def users(
    serving: Serving,
    count: int,
    lengths: tuple[int, int],
    *,
    begin_s: float,
    end_s: float,
    seed: int,
) -> Served:
    """Let so many users ask, each again when it has its answer; they begin spread over time."""
    starts = np.sort(np.random.default_rng([seed, count]).uniform(0.0, 0.5 * begin_s, count))
    engine = serving.engine(_alike(starts, lengths), seed)
    fleet, crowd = Fleet(serving, [engine]), _Crowd(engine, lengths)
    tokens_before = math.nan
    while engine.now < end_s:
        if math.isnan(tokens_before) and engine.now >= begin_s:
            tokens_before = float(engine.totals["output_tokens"][0])
        await fleet.run_until(crowd.next_s())
        crowd.ask_again()
    tokens = float(engine.totals["output_tokens"][0]) - tokens_before
    over_s = engine.finished_s
    is_over = (over_s >= begin_s) & (over_s < end_s)
    return _served([engine], fleet, [is_over], end_s - begin_s, tokens)


@dataclass(slots=True)
class _Crowd:
    """Users of one engine: who was answered asks at once, who was refused comes back."""

    engine: SimulatedEngine
    lengths: tuple[int, int]
    num_seen: int = 0
    coming_s: list[float] = field(default_factory=list)
    """When refused users come back, a heap."""

    def next_s(self) -> float:
        """Return until when to serve: to the end of one step, or to the next user's coming."""
        now = self.engine.now
        if self.engine.running or self.engine.waiting:
            return now + _A_STEP
        jobs = self.engine.jobs["arrival_s"]
        later = [*jobs[jobs > now].tolist()[:1], *self.coming_s[:1], now + 1.0]
        return float(max(now + _A_STEP, min(later)))

    def ask_again(self) -> None:
        """Offer the next requests of who has ended and of who comes back."""
        now = self.engine.now
        ended = self.engine.ended[self.num_seen :].tolist()
        self.num_seen += len(ended)
        num_now = 0
        for place in ended:
            if self.engine.outcome[place] == OK:
                num_now += 1
            else:
                heapq.heappush(self.coming_s, now + COME_BACK_S)
        while self.coming_s and self.coming_s[0] <= now:
            heapq.heappop(self.coming_s)
            num_now += 1
        # Those of the start come in the order of their times: nobody may come before them.
        if num_now:
            latest = float(self.engine.jobs["arrival_s"][-1])
            self.engine.offer(_alike(np.full(num_now, max(now, latest)), self.lengths))


def _alike(at_s: Floats, lengths: tuple[int, int]) -> Requests:
    prompt, output = (np.full(len(at_s), length, np.int64) for length in lengths)
    return Requests(
        at_s, prompt, output, np.zeros(len(at_s), np.int64), np.zeros(len(at_s), np.int8)
    )


@dataclass(frozen=True, slots=True)
class Rated:
    """Requests at a rate, spread evenly over so many pods."""

    mix: Mix
    cv: float
    seconds: float
    pods: int

    def parts(self, rps: float, seed: int) -> Iterator[Requests]:
        """Draw each pod's requests."""
        random = np.random.default_rng([seed, 4])
        at_s = arrivals(random, constant(rps), self.seconds, self.cv)
        prompt, output, cached = self.mix.draw(random, len(at_s))
        for pod in range(self.pods):
            mine = slice(pod, None, self.pods)
            lane = np.zeros(len(at_s[mine]), np.int8)
            yield Requests(at_s[mine], prompt[mine], output[mine], cached[mine], lane)


async def rate(serving: Serving, load: Rated, rps: float, *, drain_s: float, seed: int) -> Served:
    """Offer the requests, and serve what has come to its end."""
    engines = [
        serving.engine(part, 101 * seed + place) for place, part in enumerate(load.parts(rps, seed))
    ]
    fleet = Fleet(serving, engines)
    await fleet.run_until(load.seconds)
    tokens = float(sum(engine.totals["output_tokens"][0] for engine in engines))
    await fleet.run_until(load.seconds + drain_s)
    counted = [np.ones(len(engine.jobs), np.bool_) for engine in engines]
    return _served(engines, fleet, counted, load.seconds, tokens)


def _served(
    engines: list[SimulatedEngine],
    fleet: Fleet,
    counted: list[npt.NDArray[np.bool_]],
    seconds: float,
    tokens: float,
) -> Served:
    """Collect the requests that count."""
    ttft, tpot, output = [], [], []
    for engine, chosen in zip(engines, counted, strict=True):
        served = engine.outcome == OK
        ttft.append(np.where(served, engine.ttft_ms, np.nan)[chosen])
        tpot.append(np.where(served, engine.tpot_ms, np.nan)[chosen])
        output.append(engine.jobs["output"][chosen])
    return Served(
        seconds,
        np.concatenate(ttft),
        np.concatenate(tpot),
        np.concatenate(output),
        tokens / seconds,
        fleet.limits,
    )
