"""An experiment in status, in events and in metrics; and read back by the next operator."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline_api.hashes import config_hash
from paceline_api.inference_service import InferenceService
from paceline_api.status import Status, TuningStatus
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.events import verdict, verdict_event
from paceline_operator.experiment_status import experiment_status, previous_report
from paceline_operator.metrics import Metrics
from paceline_operator.report import Reporter
from paceline_operator.service_status import tuning_status
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.reports import a_report
from paceline_testing.services import a_live_service, a_service
from paceline_tuner.service_report import ArmReport, ExperimentReport
from paceline_tuner.service_spec import ExperimentPlan, Overrides, Policy, Range

RUNNING = ExperimentReport(
    name="smaller-steps",
    kind="Canary",
    verdict="Running",
    reason="compares the arms' misses",
    since=1_700_000_000.0,
    candidate_pods=("quick-1",),
    base=ArmReport(800, 8),
    candidate=ArmReport(400, 16),
)
WORSE = replace(RUNNING, verdict="Worse", reason="the candidate misses the SLA more often")
HELD = Policy("Auto", 0.95, Range(1, 64, 8), Range(64))


def status(experiment: ExperimentReport) -> Status:
    return Status(tuning=TuningStatus(experiment=experiment_status(experiment)))


def test_status_tells_what_was_compared() -> None:
    """Requests and miss rates of both arms, as custom resources write numbers."""
    found = tuning_status(a_report(experiment=RUNNING)).model_dump(by_alias=True, exclude_none=True)

    assert found["experiment"] == {
        "name": "smaller-steps",
        "kind": "Canary",
        "verdict": "Running",
        "since": "2023-11-14T22:13:20Z",
        "candidatePods": ["quick-1"],
        "requests": {"base": 800, "candidate": 400},
        "missRate": {"base": "0.0100", "candidate": "0.0400"},
        "reason": "compares the arms' misses",
    }
    assert tuning_status(a_report()).experiment is None


def test_the_next_operator_reads_verdict_and_policy_back() -> None:
    """Through JSON, as the API server gives it; counts are left behind."""
    rollout = replace(WORSE, kind="Rollout", held=HELD)
    raw = status(rollout).model_dump(by_alias=True, mode="json")
    tuning = Status.model_validate(raw).tuning

    again = previous_report(tuning.experiment if tuning else None)

    assert again == ExperimentReport(
        name="smaller-steps", kind="Rollout", verdict="Worse", reason=WORSE.reason, held=HELD
    )
    assert previous_report(None) is None


def test_counts_do_not_change_what_is_told() -> None:
    """A tuner's target that differs is tuned at once: each write of status must not cause that."""
    more = replace(RUNNING, base=ArmReport(900, 9), reason="compares the arms' misses, allowing")

    assert previous_report(experiment_status(RUNNING)) == previous_report(experiment_status(more))


def test_a_verdict_is_news_once() -> None:
    """Progress is none, and neither is a verdict that status holds already."""
    assert verdict(Status(), status(RUNNING)) is None
    assert verdict(status(RUNNING), status(WORSE)) == experiment_status(WORSE)
    assert verdict(status(WORSE), status(WORSE)) is None
    assert verdict(status(WORSE), status(replace(WORSE, name="two"))) is not None


def test_a_rollback_warns() -> None:
    """A better candidate is good news."""
    service = a_service()
    worse = verdict_event(service, experiment_status(WORSE))
    better = verdict_event(service, experiment_status(replace(WORSE, verdict="Better")))

    assert (worse["type"], worse["reason"]) == ("Warning", "ExperimentWorse")
    assert (better["type"], better["reason"]) == ("Normal", "ExperimentBetter")
    assert "smaller-steps" in worse["note"]
    assert worse["metadata"]["name"] != better["metadata"]["name"]


async def test_a_verdict_is_written_at_once_and_told() -> None:
    """Numbers wait half a minute, a rollback does not."""
    cluster = FakeCluster()
    cluster.objects["InferenceService", "quick"] = a_live_service()
    reporter = Reporter(cluster, Metrics(), lambda: None, ManualClock(), 30.0)

    async def report(experiment: ExperimentReport) -> None:
        raw = cluster.objects["InferenceService", "quick"]
        await reporter.report(InferenceService.read(raw), status(experiment))

    def events() -> list[Mapping[str, Any]]:
        return [item for (kind, _), item in cluster.objects.items() if kind == "Event"]

    await report(RUNNING)
    await report(replace(RUNNING, base=ArmReport(900, 9)))
    assert cluster.writes.count("apply InferenceService/quick/status") == 1
    assert events() == []

    await report(WORSE)

    written = cluster.objects["InferenceService", "quick"]["status"]["tuning"]["experiment"]
    assert written["verdict"] == "Worse"
    assert [event["reason"] for event in events()] == ["ExperimentWorse"]


def test_metrics_show_one_verdict_a_service() -> None:
    """The last one is taken away when another comes."""
    metrics = Metrics()
    for experiment in (RUNNING, WORSE):
        metrics.show_experiments({"ns/a": a_report(experiment=experiment), "ns/b": a_report()})

    (family,) = [f for f in metrics.registry.collect() if f.name.endswith("experiment_verdict")]
    assert [(s.labels, s.value) for s in family.samples] == [
        ({"service": "ns/a", "verdict": "Worse"}, 1.0)
    ]


def test_the_declared_experiment_reaches_the_tuner() -> None:
    """Units resolved, what is not named left open; it is a hot change."""
    tuning = {
        "stepMargin": "0.98",
        "rollout": "Canary",
        "experiment": {
            "name": "one",
            "kind": "AB",
            "share": "0.25",
            "minDuration": "2m",
            "policy": {"stepMargin": "0.95", "batchSize": {"max": 8}},
        },
    }
    spec = a_service(tuning=tuning).spec

    found = tuning_spec(spec)

    assert found.experiment == ExperimentPlan(
        "one", "AB", Overrides(step_margin=0.95, max_batch_size=8), 0.25, 120.0, 3600.0
    )
    assert (found.step_margin, found.rollout) == (0.98, "Canary")
    assert config_hash(spec) != config_hash(a_service().spec)
