"""What is new in a status, told as Kubernetes events."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService
from paceline_api.labels import MANAGER, Manifest
from paceline_api.status import (
    AdapterStatus,
    ConditionEntry,
    ExperimentStatus,
    RolloutStatus,
    Status,
)

# Conditions for which True is bad; for all others False is.
_ABNORMAL_WHEN_TRUE: Final = frozenset({"Stalled"})
# Transitional, or asked for: no reason to warn.
_EXPECTED: Final = frozenset({
    "Progressing", "Loading", "Downloading", "NoReadyPods", "NoRunningPod", "NoTraffic",
    "Paused", "Observe", "Fixed", "SchedulingGated",
})  # fmt: skip
_SUMMARY: Final = "Ready"
_SENTENCES: Final = {"True": "became true", "False": "became false", "Unknown": "became unknown"}


def news(service: InferenceService, status: Status) -> Iterator[Manifest]:
    """Yield an event for each change from the present status of the service to a new one."""
    before = service.status
    transitions = [*_transitions(before.conditions or (), status.conditions or ())]
    causes = {(each.status, each.reason) for each in transitions if each.type != _SUMMARY}
    for condition in transitions:
        is_said = condition.type == _SUMMARY and (condition.status, condition.reason) in causes
        if not (is_said and is_trouble(condition)):  # its cause says it, in the same words
            yield _condition_event(service, condition)
    if (experiment := verdict(before, status)) is not None:
        yield verdict_event(service, experiment)
    if (rollout := _judged(before.rollout, status.rollout)) is not None:
        yield _rollout_event(service, rollout)
    for adapter in _refused(before, status):
        yield _adapter_event(service, adapter)


def _transitions(
    before: Iterable[ConditionEntry], after: Iterable[ConditionEntry]
) -> Iterable[ConditionEntry]:
    """Find the conditions whose status or reason changed and that a person wants to hear of."""
    known = {condition.type: condition for condition in before}
    for condition in after:
        old = known.get(condition.type)
        is_same = old and (old.status, old.reason) == (condition.status, condition.reason)
        if not is_same and is_worth_telling(old, condition):
            yield condition


def verdict(before: Status, after: Status) -> ExperimentStatus | None:
    """Find the experiment that has come to its verdict."""
    old, new = (state.tuning.experiment if state.tuning else None for state in (before, after))
    if new is None or new.verdict == "Running":
        return None
    is_known = old is not None and (old.name, old.verdict) == (new.name, new.verdict)
    return None if is_known else new


def _judged(before: RolloutStatus | None, after: RolloutStatus | None) -> RolloutStatus | None:
    """Find the rollout that has come to its verdict, or to another one."""
    if after is None or after.verdict in {None, "Running"}:
        return None
    is_known = before is not None and (before.images, before.verdict) == (
        after.images,
        after.verdict,
    )
    return None if is_known else after


def _refused(before: Status, after: Status) -> Iterator[AdapterStatus]:
    """Find the adapters that are refused for a reason that status did not tell before."""
    told = {(adapter.name, adapter.message) for adapter in before.adapters or ()}
    for adapter in after.adapters or ():
        if adapter.message is not None and (adapter.name, adapter.message) not in told:
            yield adapter


def _condition_event(service: InferenceService, condition: ConditionEntry) -> Manifest:
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
        is_trouble=is_trouble(condition),
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


def _rollout_event(service: InferenceService, rollout: RolloutStatus) -> Manifest:
    """Tell what was found of new images. That they went back is a warning."""
    images = f"{rollout.images.engine}, {rollout.images.sidecar}"
    return _event(
        service,
        identity=f"rollout/{images}/{rollout.verdict}/{rollout.since}",
        action="Rollout",
        reason=f"Rollout{rollout.verdict}",
        is_trouble=rollout.phase == "RolledBack",
        note=f"images {images}: {rollout.reason}",
    )


def _adapter_event(service: InferenceService, adapter: AdapterStatus) -> Manifest:
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


def adopted_event(service: InferenceService, adopted: Sequence[str]) -> Manifest:
    """Tell which objects that an earlier service of this name left behind are this one's now."""
    names = ", ".join(adopted)
    return _event(
        service,
        identity=f"adopted/{names}",
        action="Adopt",
        reason="OrphansAdopted",
        is_trouble=False,
        note=f"adopted what an earlier InferenceService of this name left: {names}",
    )


def crd_outdated_event(service: InferenceService, dropped: Sequence[str]) -> Manifest:
    """Tell that the cluster's CRD is older than the operator: Helm never upgrades it by itself."""
    return _event(
        service,
        identity=f"crd/{','.join(dropped)}",
        action="Report",
        reason="CRDOutdated",
        is_trouble=True,
        note=f"the CRD is older than the operator and drops {', '.join(dropped)}: apply crds/ anew",
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
        return False  # it mirrors Ready, which is told
    return is_trouble(after) if before is None else True


def is_trouble(condition: ConditionEntry) -> bool:
    """Tell whether a condition is worth a warning."""
    bad = "True" if condition.type in _ABNORMAL_WHEN_TRUE else "False"
    return condition.status == bad and condition.reason not in _EXPECTED
