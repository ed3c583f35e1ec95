"""Kubernetes events: transitions of conditions that a person cares about, and verdicts."""

import hashlib
from datetime import UTC, datetime
from typing import Final

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService
from paceline_api.labels import MANAGER, Manifest
from paceline_api.status import AdapterStatus, ConditionEntry, ExperimentStatus

# A condition that is True in trouble; for all others trouble is False.
_ABNORMAL_WHEN_TRUE: Final = frozenset({"Stalled"})
# On the way to somewhere, or asked for: no reason to warn.
_EXPECTED: Final = frozenset({
    "Progressing", "Loading", "Downloading", "NoReadyPods", "NoRunningPod", "NoTraffic",
    "Paused", "Observe", "Fixed",
})  # fmt: skip
_SENTENCES: Final = {"True": "became true", "False": "became false", "Unknown": "became unknown"}


def event(service: InferenceService, condition: ConditionEntry) -> Manifest:
    """Tell of one transition, in the past tense.

    The name is made of what happened: telling it twice makes one event.
    """
    what = f"{condition.type}/{condition.status}/{condition.reason}"
    when = f"{condition.last_transition_time}/{condition.observed_generation}"
    return _event(
        service,
        identity=f"{what}/{when}",
        action=condition.type,
        reason=condition.reason,
        is_trouble=_is_trouble(condition),
        note=f"{condition.type} {_SENTENCES[condition.status]}: {condition.message}",
    )


def verdict_event(service: InferenceService, experiment: ExperimentStatus) -> Manifest:
    """Tell of an experiment's verdict. A rollback is a warning."""
    return _event(
        service,
        identity=f"{experiment.name}/{experiment.verdict}/{experiment.since}",
        action="Experiment",
        reason=f"Experiment{experiment.verdict}",
        is_trouble=experiment.verdict == "Worse",
        note=f"{experiment.kind} {experiment.name}: {experiment.reason}",
    )


def adapter_event(service: InferenceService, adapter: AdapterStatus) -> Manifest:
    """Tell of an adapter that an engine refused."""
    generation = service.metadata.generation
    return _event(
        service,
        identity=f"adapter/{adapter.name}/{adapter.message}/{generation}",
        action="Adapter",
        reason="AdapterRefused",
        is_trouble=True,
        note=f"adapter {adapter.name} was refused: {adapter.message}",
    )


def _event(
    service: InferenceService,
    *,
    identity: str,
    action: str,
    reason: str,
    is_trouble: bool,
    note: str,
) -> Manifest:
    digest = hashlib.sha256(f"{service.metadata.uid}/{identity}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{service.metadata.name}.{digest}",
            "namespace": service.metadata.namespace,
        },
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": GROUP,
        "reportingInstance": MANAGER,
        "action": action,
        "reason": reason,
        "type": "Warning" if is_trouble else "Normal",
        "regarding": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": service.metadata.name,
            "namespace": service.metadata.namespace,
            "uid": service.metadata.uid,
        },
        "note": note[:1000],
    }


def is_worth_telling(before: ConditionEntry | None, after: ConditionEntry) -> bool:
    """Tell of transitions and of trouble at the start; not that nothing is known yet."""
    if after.type == "Reconciling":
        return False  # the other half of Ready
    return _is_trouble(after) if before is None else True


def _is_trouble(condition: ConditionEntry) -> bool:
    bad = "True" if condition.type in _ABNORMAL_WHEN_TRUE else "False"
    return condition.status == bad and condition.reason not in _EXPECTED
