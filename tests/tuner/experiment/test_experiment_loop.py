"""Experiments on simulated engines under the real loop: found out, rolled back, promoted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ExperimentReport, ServiceReport
from paceline_tuner.service_spec import SLA, ExperimentPlan, Overrides, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Limits

pytestmark = pytest.mark.slow

PERIOD_S = 5.0
SPEC = TuningSpec(
    sla=SLA(ttft_p99_ms=3000.0, tpot_p99_ms=250.0),
    config_hash="one",
    batch_size=Range(min=1, max=16),
    token_budget=Range(min=64),
)
STARVED = Overrides(max_batch_size=1)
"""One request at a time: all others wait for longer than their first token may."""


@dataclass
class Fleet:
    """Some pods of one service under one loop; `PodClient` for all of them."""

    spec: TuningSpec
    num_pods: int = 3
    shed_ttft_ms: float | None = 6000.0
    at: float = 0.0
    previous_report: ExperimentReport | None = None
    reports: list[ServiceReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods: dict[str, SimPod] = {}
        for number in range(self.num_pods):
            self.add(f"pod-{number}", seed=number + 1)
        self.loop = TuningLoop(self, lambda: self.at)

    def add(self, name: str, *, seed: int) -> None:
        requests = clients(2.0, prompt=(10, 40), output=(8, 24), seconds=2400.0, seed=seed)
        engine = a_laptop(
            requests, limits=Limits(16, 512), seed=seed, shed_ttft_ms=self.shed_ttft_ms
        )
        self.pods[name] = SimPod(engine)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self.pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self.pods[pod.name].patch_limits(pod, body)

    async def tick(self) -> ExperimentReport | None:
        self.at += PERIOD_S
        for pod in self.pods.values():
            pod.run_until(pod.engine.now + PERIOD_S)
        targets = tuple(PodTarget(name, f"http://{name}", "token") for name in self.pods)
        target = ServiceTarget("ns/name", self.spec, targets, previous_report=self.previous_report)
        self.reports.append(await self.loop.tick(target))
        return self.reports[-1].experiment

    async def run(self, seconds: float) -> ExperimentReport | None:
        for _ in range(int(seconds / PERIOD_S)):
            await self.tick()
        return self.reports[-1].experiment

    async def verdict(self, within_s: float) -> ExperimentReport:
        """Run until the experiment has ended."""
        for _ in range(int(within_s / PERIOD_S)):
            report = await self.tick()
            if report is not None and report.verdict != "Running":
                return report
        raise AssertionError(f"no verdict within {within_s} s: {self.reports[-1].experiment}")

    def held(self, pod: str) -> int:
        """The pod's max batch size."""
        return self.pods[pod].engine.limits.max_batch_size

    def step_targets(self) -> dict[str, float]:
        """Milliseconds, by pod."""
        found = {name: pod.engine.limits.step_target_ms for name, pod in self.pods.items()}
        return {name: target for name, target in found.items() if target is not None}

    def sent(self, pod: str) -> list[object]:
        """Every max batch size that the pod was ever told."""
        return [
            body["max_batch_size"] for body in self.pods[pod].bodies if "max_batch_size" in body
        ]


def an_experiment(overrides: Overrides = STARVED, **fields: object) -> ExperimentPlan:
    plan = ExperimentPlan("one", "Canary", overrides, min_s=60.0, max_s=1200.0)
    return replace(plan, **fields)  # type: ignore[arg-type]  # a builder's free fields


def trying(experiment: ExperimentPlan, spec: TuningSpec = SPEC) -> TuningSpec:
    return replace(spec, experiment=experiment, config_hash=experiment.name)


async def test_a_worse_canary_is_rolled_back_and_no_other_pod_had_it() -> None:
    """One pod suffers for a few minutes; then it has the base policy again."""
    fleet = Fleet(trying(an_experiment()))
    await fleet.run(60)
    (canary,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
    assert fleet.held(canary) == 1

    report = await fleet.verdict(within_s=900)
    await fleet.run(30)

    assert report.verdict == "Worse"
    assert "rolled back" in report.reason
    assert report.candidate.miss_rate is not None
    assert report.base.miss_rate is not None
    assert report.candidate.miss_rate > 10 * report.base.miss_rate
    assert report.candidate.requests >= 100
    assert fleet.held(canary) >= 4
    assert all(1 not in fleet.sent(pod) for pod in fleet.pods if pod != canary)


async def test_a_canary_that_lets_requests_pile_up_is_rolled_back() -> None:
    """A target for the pace alone calls nobody late who waits: goodput does."""
    spec = replace(SPEC, sla=SLA(tpot_p99_ms=250.0))
    fleet = Fleet(trying(an_experiment(), spec), shed_ttft_ms=None)

    report = await fleet.verdict(within_s=1200)

    assert report.verdict == "Worse"
    assert "5 % less within the SLA" in report.reason
    assert report.candidate.misses <= report.base.misses


async def test_a_step_margin_reaches_the_canary_at_once() -> None:
    """Four percent are within the dead band of noise, but they were asked for."""
    fleet = Fleet(SPEC)
    await fleet.run(120)
    fleet.spec = trying(an_experiment(Overrides(step_margin=0.96), max_s=3600.0))
    before = fleet.step_targets()

    await fleet.run(10)

    (canary,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
    after = fleet.step_targets()
    assert after[canary] < before[canary]
    assert all(after[pod] == before[pod] for pod in fleet.pods if pod != canary)


async def test_a_verdict_is_remembered_by_name() -> None:
    """What was rolled back stays so until somebody names a new experiment."""
    fleet = Fleet(trying(an_experiment()))
    ended = await fleet.verdict(within_s=900)

    later = await fleet.run(120)
    assert later == ended
    assert all(fleet.held(pod) > 1 for pod in fleet.pods)

    fleet.spec = trying(an_experiment(name="two"))
    again = await fleet.run(60)

    assert again is not None
    assert (again.name, again.verdict) == ("two", "Running")
    assert [fleet.held(pod) for pod in again.candidate_pods] == [1]


async def test_a_new_operator_goes_on_from_what_status_tells() -> None:
    """The one that found the candidate worse may be gone; its verdict is not."""
    fleet = Fleet(trying(an_experiment()))
    ended = await fleet.verdict(within_s=900)
    heir = Fleet(fleet.spec, previous_report=replace(ended, since=None, candidate_pods=()))

    report = await heir.run(60)

    assert report is not None
    assert report.verdict == "Worse"
    assert all(1 not in heir.sent(pod) for pod in heir.pods)


async def test_an_equal_candidate_ends_without_a_difference() -> None:
    """Time runs out, and all pods have the base policy."""
    same = an_experiment(Overrides(step_margin=1.0, max_token_budget=2000), max_s=600.0)
    fleet = Fleet(trying(same))

    report = await fleet.verdict(within_s=700)

    assert report.verdict == "NoDifference"
    assert fleet.at >= 600
    assert report.candidate.requests >= 100


async def test_a_better_candidate_goes_to_all_pods() -> None:
    """The declared bound of one is the trouble: without it all requests are in time."""
    starved = replace(SPEC, batch_size=Range(min=1, max=1))
    fleet = Fleet(trying(an_experiment(Overrides(max_batch_size=16)), starved))
    await fleet.run(60)
    assert sorted(fleet.held(pod) > 1 for pod in fleet.pods) == [False, False, True]

    report = await fleet.verdict(within_s=1200)
    await fleet.run(30)

    assert report.verdict == "Better"
    assert "write it into spec.tuning" in report.reason
    assert all(fleet.held(pod) > 1 for pod in fleet.pods)

    fleet.spec = starved
    assert await fleet.run(30) is None
    assert [fleet.held(pod) for pod in fleet.pods] == [1, 1, 1]


async def test_an_ab_tells_which_is_better_and_changes_nothing() -> None:
    """It is asked to compare: what to do with the answer is the spec's."""
    starved = replace(SPEC, batch_size=Range(min=1, max=1))
    plan = an_experiment(Overrides(max_batch_size=16), kind="AB")
    fleet = Fleet(trying(plan, starved), num_pods=4)
    await fleet.run(60)
    assert sorted(fleet.held(pod) > 1 for pod in fleet.pods) == [False, False, True, True]

    report = await fleet.verdict(within_s=1200)
    await fleet.run(30)

    assert report.verdict == "Better"
    assert len(report.candidate_pods) == 2
    assert [fleet.held(pod) for pod in fleet.pods] == [1, 1, 1, 1]


async def test_a_canary_that_dies_is_replaced_and_judged() -> None:
    """What was counted stays; another pod takes the candidate."""
    fleet = Fleet(trying(an_experiment()))
    await fleet.run(50)
    (first,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
    del fleet.pods[first]
    fleet.add("pod-new", seed=9)

    report = await fleet.verdict(within_s=900)

    assert report.verdict == "Worse"
    assert first not in report.candidate_pods
    assert len(report.candidate_pods) == 1


async def test_a_candidate_that_kills_its_pods_does_not_go_round() -> None:
    """After the second pod it lost, nobody gets it any more."""
    fleet = Fleet(trying(an_experiment(max_s=3600.0)), num_pods=5)
    for _ in range(2):
        await fleet.run(15)
        (canary,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
        del fleet.pods[canary]

    report = await fleet.run(30)

    assert report is not None
    assert report.verdict == "Aborted"
    assert "went away" in report.reason
    assert all(1 not in fleet.sent(pod) for pod in fleet.pods)


async def test_a_rollout_that_kills_its_pods_is_held_back() -> None:
    """The others keep the policy before."""
    careful = replace(SPEC, rollout="Canary")
    fleet = Fleet(careful, num_pods=5)
    await fleet.run(15)
    fleet.spec = replace(careful, batch_size=Range(min=1, max=1), config_hash="two")
    for _ in range(2):
        await fleet.run(15)
        (canary,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
        del fleet.pods[canary]

    report = await fleet.run(30)

    assert report is not None
    assert (report.kind, report.verdict) == ("Rollout", "Aborted")
    assert all(1 not in fleet.sent(pod) for pod in fleet.pods)


async def test_too_few_pods_end_it() -> None:
    """One pod alone cannot be compared; it gets the base policy at once."""
    fleet = Fleet(trying(an_experiment()), num_pods=2)
    await fleet.run(60)
    (canary,) = fleet.reports[-1].experiment.candidate_pods  # type: ignore[union-attr]  # it runs
    for pod in [pod for pod in fleet.pods if pod != canary]:
        del fleet.pods[pod]

    await fleet.run(30)
    assert fleet.held(canary) > 1
    report = await fleet.verdict(within_s=60)

    assert report.verdict == "Aborted"
    assert "two pods" in report.reason


async def test_one_pod_waits_for_another() -> None:
    """Nothing is tried on the only pod there is."""
    fleet = Fleet(trying(an_experiment()), num_pods=1)

    report = await fleet.run(60)

    assert report is not None
    assert (report.verdict, report.since) == ("Running", None)
    assert "waits" in report.reason
    assert 1 not in fleet.sent("pod-0")


async def test_a_changed_sla_ends_it() -> None:
    """Misses of two different SLAs cannot be added up."""
    fleet = Fleet(trying(an_experiment(max_s=3600.0)))
    await fleet.run(40)
    fleet.spec = replace(fleet.spec, sla=SLA(ttft_p99_ms=2000.0))

    report = await fleet.run(5)

    assert report is not None
    assert report.verdict == "Aborted"
    assert "SLA" in report.reason


async def test_a_changed_bound_is_tried_on_one_pod_first() -> None:
    """`rollout: Canary`: a bad change of the declared bounds never reaches the other pods."""
    careful = replace(SPEC, rollout="Canary")
    fleet = Fleet(careful)
    assert await fleet.run(30) is None
    fleet.spec = replace(careful, batch_size=Range(min=1, max=1), config_hash="two")
    await fleet.run(60)
    assert sorted(fleet.held(pod) == 1 for pod in fleet.pods) == [False, False, True]

    report = await fleet.verdict(within_s=900)
    await fleet.run(60)

    assert (report.kind, report.verdict) == ("Rollout", "Worse")
    assert all(fleet.held(pod) > 1 for pod in fleet.pods)
    assert report.held is not None
    assert report.held.batch_size == Range(min=1, max=16)

    heir = Fleet(fleet.spec, previous_report=report)
    await heir.run(30)
    assert all(1 not in heir.sent(pod) for pod in heir.pods)


async def test_a_harmless_change_reaches_all_pods_in_time() -> None:
    """Nothing was found against it within a quarter of an hour."""
    careful = replace(SPEC, rollout="Canary")
    fleet = Fleet(careful)
    await fleet.run(30)
    fleet.spec = replace(careful, batch_size=Range(min=1, max=5), config_hash="two")

    report = await fleet.verdict(within_s=1000)
    await fleet.run(30)

    assert (report.kind, report.verdict) == ("Rollout", "NoDifference")
    assert all(fleet.held(pod) <= 5 for pod in fleet.pods)


async def test_a_change_for_two_pods_goes_out_at_once() -> None:
    """A canary needs two others to be compared with."""
    careful = replace(SPEC, rollout="Canary")
    fleet = Fleet(careful, num_pods=2)
    await fleet.run(30)
    fleet.spec = replace(careful, batch_size=Range(min=1, max=5), config_hash="two")

    assert await fleet.run(30) is None
    assert all(fleet.held(pod) <= 5 for pod in fleet.pods)
