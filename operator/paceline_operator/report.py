"""What was seen and decided -> status and events, written only when they say something new."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService
from paceline_api.labels import Manifest
from paceline_api.status import ConditionEntry, ExperimentStatus, Status
from paceline_api.units import timestamp
from paceline_operator.adapter_status import refused
from paceline_operator.cluster import Cluster
from paceline_operator.conditions.judgement import Judgement
from paceline_operator.errors import ClusterError
from paceline_operator.events import adapter_event, event, is_worth_telling, verdict_event
from paceline_operator.metrics import Metrics

# Fields that hold measurements: a change of them alone is written at most every 30 s.
_NUMBERS: Final = ("sla", "tuning")


@dataclass(slots=True)
class Reporter:
    """The only writer of status and events."""

    cluster: Cluster
    metrics: Metrics
    check_leadership: Callable[[], None]
    clock: Callable[[], float]
    numbers_interval_s: float
    _written_at: dict[str, float] = field(default_factory=dict)
    _latest: dict[str, InferenceService] = field(default_factory=dict)
    """As the API server answered our last write: the watch may still be behind it."""

    def freshest(self, service: InferenceService) -> InferenceService:
        """Give the service the status that we wrote, where the watch has not seen it yet."""
        latest = self._latest.get(service.metadata.uid)
        if latest is None or latest.metadata.resource_version <= service.metadata.resource_version:
            return service
        return service.model_copy(update={"status": latest.status})

    async def report(self, service: InferenceService, status: Status) -> None:
        """Write the status on a transition, or when its numbers are old enough."""
        old, new = _plain(service.status), _plain(status)
        if _without_times(old) == _without_times(new) or not self._is_due(service.key, old, new):
            return
        self.check_leadership()
        answer = await self.cluster.apply(_manifest(service, new), subresource="status")
        self._latest[service.metadata.uid] = InferenceService.read(answer)
        self._written_at[service.key] = self.clock()
        self.metrics.status_writes.inc()
        for condition in transitions(service.status.conditions or (), status.conditions or ()):
            await self._tell(event(service, condition))
        if (experiment := verdict(service.status, status)) is not None:
            await self._tell(verdict_event(service, experiment))
        for adapter in refused(service.status, status):
            await self._tell(adapter_event(service, adapter))

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._written_at.pop(key, None)
        for uid in [uid for uid, latest in self._latest.items() if latest.key == key]:
            del self._latest[uid]

    def _is_due(self, key: str, old: Manifest, new: Manifest) -> bool:
        if _without_numbers(old) != _without_numbers(new):
            return True
        written_at = self._written_at.get(key)
        return written_at is None or self.clock() - written_at >= self.numbers_interval_s

    async def _tell(self, news: Manifest) -> None:
        try:
            await self.cluster.create(news)
        except ClusterError:
            return  # an event is a courtesy: status says the same and has been written


def conditions(
    service: InferenceService, judgements: Sequence[Judgement], now: datetime
) -> list[ConditionEntry]:
    """Give each judgement its history: the time moves only when the status does."""
    before = {condition.type: condition for condition in service.status.conditions or ()}
    found = []
    for judgement in judgements:
        old = before.get(judgement.type)
        since = (
            old.last_transition_time if old and old.status == judgement.status else timestamp(now)
        )
        found.append(
            ConditionEntry(
                type=judgement.type,
                status=judgement.status,
                observed_generation=service.metadata.generation,
                last_transition_time=since,
                reason=judgement.reason,
                message=judgement.message[:2048],
            )
        )
    return found


def transitions(
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


def _plain(status: Status) -> Manifest:
    return _without_empty(status.model_dump(by_alias=True, exclude_none=True, mode="json"))


def _without_empty(found: Manifest) -> Manifest:
    """Leave out empty objects: applied over a filled one, the API server makes them null."""
    pruned = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in found.items()
    }
    return {key: value for key, value in pruned.items() if value != {}}


def _without_times(status: Manifest) -> Manifest:
    """Leave out the end of the window: that it moved is not worth a write."""
    sla = status.get("sla", {})
    observed = {key: value for key, value in sla.get("observed", {}).items() if key != "windowEnd"}
    return status | {"sla": sla | {"observed": observed}}


def _without_numbers(status: Manifest) -> dict[str, Any]:
    experiment = status.get("tuning", {}).get("experiment", {})
    # Whose experiment stands how is no number: a verdict is written at once.
    stands = {key: experiment.get(key) for key in ("name", "verdict", "candidatePods")}
    return {key: value for key, value in status.items() if key not in _NUMBERS} | {
        "experiment": stands
    }


def _manifest(service: InferenceService, status: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        # With the uid a service of the same name, made anew meanwhile, is not written to.
        "metadata": {
            "name": service.metadata.name,
            "namespace": service.metadata.namespace,
            "uid": service.metadata.uid,
        },
        "status": status,
    }
