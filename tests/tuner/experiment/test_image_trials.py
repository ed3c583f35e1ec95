"""A pod with new images beside the others, on simulated engines under the real loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from paceline_sim.hardware import Disturbance
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ExperimentReport, ServiceReport
from paceline_tuner.service_spec import SLA, ExperimentPlan, Overrides, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Limits

pytestmark = pytest.mark.slow

_PERIOD_S = 5.0
_SPEC = TuningSpec(
    sla=SLA(ttft_p99_ms=3000.0, tpot_p99_ms=250.0),
    config_hash="one",
    batch_size=Range(min=1, max=16),
    token_budget=Range(min=64),
)
_CANARY = "canary"


@dataclass
class Beside:
    """Two pods with the old images, and one with new ones that may be slower."""

    slower: float = 1.0
    rate_rps: float = 2.0
    spec: TuningSpec = _SPEC
    at: float = 0.0
    reports: list[ServiceReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        slow = Disturbance(0.0, 10_000.0, self.slower)
        self.pods = {name: self._pod(seed) for seed, name in enumerate(("old-1", "old-2"), 1)}
        self.pods[_CANARY] = self._pod(3, *([slow] if self.slower > 1 else []))
        self.loop = TuningLoop(self, lambda: self.at)

    def _pod(self, seed: int, *disturbances: Disturbance) -> SimPod:
        requests = clients(
            self.rate_rps, prompt=(10, 40), output=(8, 24), seconds=2400.0, seed=seed
        )
        return SimPod(
            a_laptop(
                requests,
                limits=Limits(16, 512),
                seed=seed,
                shed_ttft_ms=6000.0,
                disturbances=disturbances,
            )
        )

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self.pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self.pods[pod.name].patch_limits(pod, body)

    async def tick(self, name: str = "images-1", longest_s: float = 900.0) -> ServiceReport:
        self.at += _PERIOD_S
        for pod in self.pods.values():
            pod.run_until(pod.engine.now + _PERIOD_S)
        targets = tuple(
            PodTarget(pod, f"http://{pod}", "token", is_canary=pod == _CANARY) for pod in self.pods
        )
        target = ServiceTarget(
            "ns/name", self.spec, targets, image_trial=name, image_trial_s=longest_s
        )
        self.reports.append(await self.loop.tick(target))
        return self.reports[-1]

    async def verdict(self, longest_s: float = 900.0) -> ExperimentReport:
        for _ in range(int(longest_s / _PERIOD_S) + 20):
            report = (await self.tick(longest_s=longest_s)).image_trial
            assert report is not None
            if report.verdict != "Running":
                return report
        raise AssertionError(f"no verdict within {longest_s} s")


async def test_images_that_take_four_times_as_long_are_found_out() -> None:
    report = await Beside(slower=4.0).verdict()

    assert report.verdict == "Worse"
    assert report.candidate_pods == (_CANARY,)


async def test_images_that_do_the_same_pass_when_their_time_is_up() -> None:
    beside = Beside()

    report = await beside.verdict(longest_s=600.0)

    assert report.verdict == "NoDifference"
    assert report.base.requests > 100
    assert beside.at == pytest.approx(600.0, abs=2 * _PERIOD_S)


async def test_without_traffic_they_pass_and_it_says_so() -> None:
    report = await Beside(rate_rps=0.01).verdict(longest_s=300.0)

    assert (report.verdict, report.reason) == (
        "NoDifference",
        "too few requests came to compare",
    )


async def test_the_canary_is_tuned_and_takes_no_part_in_an_experiment_of_policies() -> None:
    """It has the base's policy: two differences at once could not be told apart."""
    plan = ExperimentPlan("one", "Canary", Overrides(max_batch_size=1), min_s=60.0, max_s=1200.0)
    beside = Beside(spec=replace(_SPEC, experiment=plan))

    report = await beside.tick()
    for _ in range(11):
        report = await beside.tick()

    assert report.experiment is not None
    (tried,) = report.experiment.candidate_pods
    assert tried != _CANARY
    assert beside.pods[_CANARY].engine.limits.max_batch_size > 1
    assert beside.pods[_CANARY].bodies  # limits and leases reach it
    assert {pod.name for pod in report.pods} == set(beside.pods)
    assert report.image_trial is not None
    members = beside.loop._image_trials._trials["ns/name"].members
    assert set(members) == {_CANARY, *beside.pods} - {tried}


async def test_another_attempt_begins_anew_and_none_leaves_nothing() -> None:
    beside = Beside()
    await beside.tick("images-1")
    again = (await beside.tick("images-2")).image_trial
    nothing = (await beside.tick("")).image_trial

    assert again is not None
    assert (again.name, again.since) == ("images-2", beside.at - _PERIOD_S)
    assert nothing is None


async def test_a_canary_that_goes_away_twice_is_given_up() -> None:
    beside = Beside()
    for _ in range(2):
        await beside.tick()
        canary = beside.pods.pop(_CANARY)
        await beside.tick()
        beside.pods[_CANARY] = canary

    report = (await beside.tick()).image_trial

    assert report is not None
    assert report.verdict == "Aborted"
