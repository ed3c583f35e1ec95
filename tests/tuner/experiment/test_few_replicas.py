"""Two replicas with little traffic: their loads are never equal, and all of it counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import SLA, ExperimentPlan, Overrides, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Limits

pytestmark = pytest.mark.slow

_PERIOD_S = 5.0
_SPEC = TuningSpec(
    sla=SLA(ttft_p99_ms=6000.0),
    config_hash="one",
    batch_size=Range(min=1, max=16),
    token_budget=Range(min=64),
)
_STARVED = Overrides(max_batch_size=1)
"""One request at a time."""
_SAME = Overrides(max_token_budget=2000)


def routed(*, share: float, seed: int, rate: float = 2.6, seconds: float = 900.0) -> list[Requests]:
    """Requests of 20 to 900 words, each sent to one of two pods by chance."""
    chance = np.random.default_rng(seed)
    arrival = np.cumsum(chance.exponential(1 / rate, int(rate * seconds)))
    words = np.exp(chance.uniform(np.log(20), np.log(900), len(arrival)))
    prompt = (1.3 * words).astype(np.int64)
    output = chance.integers(8, 24, len(arrival))
    is_first = chance.random(len(arrival)) < share
    return [
        Requests(
            arrival[chosen],
            prompt[chosen],
            output[chosen],
            cached=np.zeros(chosen.sum(), np.int64),
            lane=np.zeros(chosen.sum(), np.int8),
        )
        for chosen in (is_first, ~is_first)
    ]


@dataclass
class Pair:
    """Two pods of one service under one loop; `PodClient` for both."""

    overrides: Overrides
    seed: int
    share: float = 0.5
    at: float = 0.0
    pods: dict[str, SimPod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.requests = routed(share=self.share, seed=self.seed)
        for number, requests in enumerate(self.requests):
            engine = a_laptop(
                requests, limits=Limits(16, 512), seed=self.seed + number, shed_ttft_ms=8000.0
            )
            self.pods[f"pod-{number}"] = SimPod(engine)
        plan = ExperimentPlan("one", "Canary", self.overrides, min_s=60.0, max_s=3600.0)
        self.spec = replace(_SPEC, experiment=plan)
        self.loop = TuningLoop(self, lambda: self.at)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self.pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self.pods[pod.name].patch_limits(pod, body)

    async def run(self, until_s: float) -> ExperimentReport:
        """Tick until then, or until the verdict."""
        targets = tuple(PodTarget(name, f"http://{name}", "token") for name in self.pods)
        while True:
            self.at += _PERIOD_S
            for pod in self.pods.values():
                pod.run_until(pod.engine.now + _PERIOD_S)
            report = await self.loop.tick(ServiceTarget("ns/name", self.spec, targets))
            assert report.experiment is not None
            if report.experiment.verdict != "Running" or self.at >= until_s:
                return report.experiment

    @property
    def offered(self) -> int:
        """Requests that have come so far."""
        return sum(int((each.arrival_s <= self.at).sum()) for each in self.requests)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("share", [0.5, 0.42], ids=["by chance", "steadily"])
async def test_nine_of_ten_requests_count(share: float, seed: int) -> None:
    """Of all that came in nine minutes; half a minute is for settling."""
    pair = Pair(_SAME, seed, share)

    report = await pair.run(540.0)

    assert report.verdict == "Running"
    assert report.base.requests + report.candidate.requests >= 0.9 * pair.offered


@pytest.mark.parametrize("seed", range(4))
async def test_a_grossly_worse_candidate_is_called_within_five_minutes(seed: int) -> None:
    pair = Pair(_STARVED, seed)

    report = await pair.run(600.0)

    assert report.verdict == "Worse"
    assert pair.at <= 300.0
