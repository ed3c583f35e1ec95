"""Changes of the load and of the device are seen soon, and bursts are not taken for one."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from paceline_testing.telemetry import a_fit, a_limits, a_request
from paceline_tuner.drift import Drift
from paceline_tuner.page_hinkley import PageHinkley
from paceline_tuner.telemetry import EngineInfo, Load, RequestRecord
from paceline_tuner.window import Evidence

pytestmark = pytest.mark.slow

PERIOD_S = 5.0


@dataclass
class Traffic:
    """Requests that come at gamma intervals and end two seconds later, counted as a pod does."""

    rate: float
    cv: float = 1.0
    prompt: float = 400.0
    output: float = 60.0
    miss_share: float = 1.0
    fast: float = 1.0
    seed: int = 1
    now: float = 1000.0
    tokens: int = 0
    queries: int = 0
    hits: int = 0
    seq: int = 0
    ahead: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.next_at = self.now

    def period(self) -> Evidence:
        """Let one decision period pass."""
        end = self.now + PERIOD_S
        while self.next_at < end:
            shape = 1 / self.cv**2
            self.ahead.append(self.next_at + 2.0)
            prompt = max(1, int(self.random.lognormvariate(math.log(self.prompt), 0.7)))
            hit = int(prompt * (1 - self.miss_share))
            self.queries, self.hits = self.queries + prompt, self.hits + hit
            self.tokens += prompt - hit
            self.next_at += self.random.gammavariate(shape, 1 / (self.rate * shape))
        self.now = end
        ended = [at for at in self.ahead if at <= end]
        self.ahead = [at for at in self.ahead if at > end]
        return self._evidence(tuple(self._ended(ended)))

    def _ended(self, times: list[float]) -> Iterator[RequestRecord]:
        for at in times:
            self.seq += 1
            output = max(1, int(self.random.lognormvariate(math.log(self.output), 0.7)))
            yield a_request(self.seq, at, arrived_at=at - 2.0, output_tokens=output)

    def _evidence(self, requests: tuple[RequestRecord, ...]) -> Evidence:
        load = Load(
            running=len(self.ahead),
            waiting=0,
            waiting_tokens=0,
            prefix_queries=self.queries,
            prefix_hits=self.hits,
            prompt_tokens=self.tokens,
        )
        return Evidence(
            now=self.now,
            instance="a",
            ready=True,
            limits=a_limits(),
            load=load,
            model=a_fit(fast=self.fast),
            info=EngineInfo(),
            window_s=60.0,
            steps=(),
            requests=requests,
            slices=(),
        )


def watched(traffic: Traffic, periods: int, drift: Drift) -> tuple[Drift, list[Drift]]:
    states = []
    for _ in range(periods):
        drift = drift.observe(traffic.period(), PERIOD_S)
        states.append(drift)
    return drift, states


@pytest.mark.parametrize("rate", [1.0, 3.0, 10.0])
def test_bursty_traffic_gives_less_than_one_false_alarm_an_hour(rate: float) -> None:
    """Bursts with a CV of 2.5 are the normal load of a chat service."""
    alarms = 0
    for seed in range(6):
        traffic = Traffic(rate, cv=2.5, seed=seed)
        _, states = watched(traffic, 720, Drift())
        alarms += sum(bool(state.tripped) for state in states)

    assert alarms < 6


def _double_rate(traffic: Traffic) -> None:
    traffic.rate *= 2


def _double_prompts(traffic: Traffic) -> None:
    traffic.prompt *= 2


def _longer_outputs(traffic: Traffic) -> None:
    traffic.output *= 2


def _lose_prefixes(traffic: Traffic) -> None:
    traffic.miss_share = 1.0


@pytest.mark.parametrize(
    ("change", "signal"),
    [
        (_double_rate, "rate"),
        (_double_prompts, "prompt"),
        (_longer_outputs, "output"),
        (_lose_prefixes, "prefix"),
    ],
    ids=["rate", "prompt", "output", "prefix"],
)
def test_twice_the_load_is_seen_within_two_periods(
    change: Callable[[Traffic], None], signal: str
) -> None:
    """Ten requests a second: fifty of a period tell."""
    late = 0
    for seed in range(40):
        traffic = Traffic(10.0, miss_share=0.3, seed=seed)
        drift, _ = watched(traffic, 120, Drift())
        change(traffic)
        periods = 3 if signal == "output" else 2  # the first outputs are still of before

        drift, states = watched(traffic, periods, drift)

        late += not any(signal in state.tripped for state in states)

    assert late <= 2


def test_what_came_before_the_change_is_named() -> None:
    """The window is shortened to what came after it."""
    traffic = Traffic(10.0)
    drift, _ = watched(traffic, 60, Drift())
    changed_at = traffic.now
    traffic.rate = 30.0

    drift, states = watched(traffic, 2, drift)

    assert any(state.has_new_load for state in states)
    assert abs(drift.fresh_since - changed_at) <= PERIOD_S
    assert drift.lengths_since < changed_at


def test_new_prompts_end_what_is_known_of_lengths() -> None:
    """The lengths of before are of another load; under a new rate alone they are the same."""
    traffic = Traffic(10.0)
    drift, _ = watched(traffic, 60, Drift())
    changed_at = traffic.now
    traffic.prompt *= 3

    drift, _ = watched(traffic, 2, drift)

    assert abs(drift.lengths_since - changed_at) <= PERIOD_S


def test_two_readings_at_once_are_one_period() -> None:
    """A changed spec makes a tick of its own; a fifth of a second tells nothing of a rate."""
    traffic = Traffic(10.0)
    drift, _ = watched(traffic, 60, Drift())
    evidence = traffic.period()

    again = drift.observe(evidence, PERIOD_S).observe(evidence, PERIOD_S)

    assert again.rate.num == drift.rate.num + 1


def test_a_slow_drift_is_followed_and_not_announced() -> None:
    """A day's rise is no event."""
    detector = PageHinkley(floor=0.1, spread=0.35)
    trips = 0
    for minute in range(2000):
        detector = detector.add(minute * 0.0005, 5.0 * minute)
        trips += detector.changed_at is not None

    assert trips == 0
