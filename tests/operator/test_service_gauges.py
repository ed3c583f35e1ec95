"""What the operator's metrics say about single services."""

from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from paceline_operator.service_gauges import ServiceGauges
from paceline_testing.reports import a_change, a_pod_report, a_report
from paceline_testing.services import a_live_service
from paceline_tuner.service_report import Throughput, TokenCost

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _shown(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Values by the label that does not name the service."""
    found = {}
    for sample in (sample for family in registry.collect() for sample in family.samples):
        if sample.name == f"paceline_{name}":
            labels = dict(sample.labels)
            service = labels.pop("namespace"), labels.pop("inferenceservice")
            assert service == ("default", "quick")
            found["".join(labels.values())] = sample.value
    return found


def _with_status(**status: Any) -> dict[str, Any]:
    return a_live_service() | {"status": status}


def _a_condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Because", "message": "it is so"}


def test_a_condition_is_one_or_zero_and_absent_while_nobody_knows() -> None:
    """An alert must not take what is not known for trouble."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)
    said = [("Ready", "True"), ("SLAAchievable", "False"), ("SLAMet", "Unknown")]

    gauges.show_statuses([_with_status(conditions=[_a_condition(*each) for each in said])], _NOON)
    assert _shown(registry, "condition") == {"Ready": 1.0, "SLAAchievable": 0.0}

    gauges.show_statuses([a_live_service()], _NOON)
    assert _shown(registry, "condition") == {}


def test_a_rollout_shows_how_long_its_phase_lasts_until_it_is_done() -> None:
    """What is done is history, and no age of it is news."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)
    for phase, shown in (("Canary", {"Canary": 3600.0}), ("Done", {})):
        rollout = {"phase": phase, "since": "2026-01-01T11:00:00Z"}

        gauges.show_statuses([_with_status(rollout=rollout)], _NOON)

        assert _shown(registry, "image_rollout_seconds") == shown


def test_pods_are_counted_by_the_phase_of_their_tuning() -> None:
    """With those whose limits swing, and whether all serve by what is declared."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)
    pods = (
        a_pod_report(phase="Frozen"),
        a_pod_report(phase="Frozen"),
        a_pod_report(phase="Tracking", is_swinging=True),
    )

    gauges.show_reports({"default/quick": a_report(pods=pods, acknowledged=False)})

    phases = _shown(registry, "tuner_pods")
    assert {phase: count for phase, count in phases.items() if count} == {
        "Frozen": 2.0,
        "Tracking": 1.0,
    }
    assert phases["Backoff"] == 0.0
    assert _shown(registry, "tuner_swinging_pods") == {"": 1.0}
    assert _shown(registry, "config_acknowledged") == {"": 0.0}


def test_the_last_change_of_a_pod_says_when_and_by_what_and_which_way() -> None:
    """A dashboard marks it; the change before is gone with its labels."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)
    first = a_change(at=100.0, pod="one", binding="SLA:itl")
    then = a_change(at=200.0, pod="one", binding="KV", to_batch_size=48, to_token_budget=2048)
    for change, shown in (
        (first, {"oneSLA:itlsamedown": 100.0}),
        (then, {"oneKVupsame": 200.0}),
        (None, {}),
    ):
        pods = (a_pod_report(last_change=change),)

        gauges.show_reports({"default/quick": a_report(pods=pods)})

        assert _shown(registry, "tuner_last_change_timestamp_seconds") == shown


def test_a_service_without_pods_has_acknowledged_nothing_and_refused_nothing() -> None:
    """Scaled to zero it alerts nobody."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)

    gauges.show_reports({"default/quick": a_report(pods=(), acknowledged=False)})

    assert _shown(registry, "config_acknowledged") == {}
    assert _shown(registry, "tuner_pods") == {}


def test_throughput_and_cost_are_absent_until_they_are_known() -> None:
    """A dashboard shows a gap, never a cost of nothing."""
    registry = CollectorRegistry()
    gauges = ServiceGauges(registry)
    given = Throughput(output_tps=40.0, prompt_tps=160.0, finished_rps=0.5)

    gauges.show_reports({"default/quick": a_report(throughput=given, cost=TokenCost(5.0, 1.0))})

    assert _shown(registry, "output_tokens_per_second") == {"": 40.0}
    assert _shown(registry, "finished_requests_per_second") == {"": 0.5}
    assert _shown(registry, "cost_per_million_output_tokens") == {"": 5.0}
    assert _shown(registry, "cost_per_million_tokens") == {"": 1.0}

    gauges.show_reports({"default/quick": a_report()})

    assert _shown(registry, "output_tokens_per_second") == {}
    assert _shown(registry, "cost_per_million_output_tokens") == {}
