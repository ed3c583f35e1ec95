"""Tuning: what the tuner is to do, from what the watches know, and what it concluded."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median_low
from typing import Final, Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.admin_port import admin_target
from paceline_operator.experiment_status import previous_report
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Observation, Watched, observe
from paceline_operator.report_news import is_news
from paceline_operator.rollout.step import trial_name
from paceline_operator.sharding.shares import shard_of
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget

_GRANT_S: Final = 0.5

_log = logging.getLogger(__name__)


class Tuner(Protocol):
    """Tunes the services that it was told of, in this process or beside it."""

    def grant(self, shard: int, until: float) -> None:
        """Let limits of a shard's pods be changed until then, in monotonic seconds.

        A past moment ends it.
        """
        ...

    def follow(self, uid: str, target: ServiceTarget) -> None:
        """Tune this from now on; at once if it differs from what was tuned."""
        ...

    def forget(self, key: str) -> None:
        """Stop tuning a service that is gone."""
        ...

    def is_tuning(self, key: str) -> bool:
        """Tell whether a service that was told of is being tuned."""
        ...

    async def annotations(self, since_ms: float) -> list[Annotation]:
        """Mark what was decided since then, in Unix milliseconds, oldest first."""
        ...

    async def run(self) -> None:
        """Tune until cancelled; then all tuning has ended."""
        ...


@dataclass(slots=True)
class _Followed:
    """What the tuner was given to tune for one service, and what it last reported."""

    uid: str
    target: ServiceTarget
    told: ServiceReport | None = None
    """The last report that was passed on to be written to status."""


@dataclass(slots=True)
class Tuning:
    """Hands targets to the tuner when they change; `reports` holds its last conclusions."""

    watched: Watched
    token: Callable[[InferenceService], str]
    tell: Callable[[str], None]
    """Called with the key after a round that found something to tell."""
    numbers_are_due: Callable[[str], bool]
    """Whether the status of this key may be written for its numbers alone."""
    metrics: Metrics
    owners: Sequence[Leader]
    """Who may tune the services of each shard; `run` takes up what is theirs."""
    pass_on: Callable[[str, ServiceReport], bool] = lambda uid, report: False  # noqa: ARG005
    """Gives a report, with its service's uid, to the replica that leads; False where it is this."""
    tuner: Tuner = field(init=False)
    """Must be set before anything is followed; the tuner takes this object as its listener."""
    reports: dict[str, ServiceReport] = field(init=False, default_factory=dict)
    _followed: dict[str, _Followed] = field(init=False, default_factory=dict)

    async def run(self) -> None:
        """Lend to the tuner, for ever, what the Leases of the shards give."""
        async with asyncio.TaskGroup() as group:
            for shard, owner in enumerate(self.owners):
                group.create_task(self._lend(shard, owner), name=f"owner of shard {shard}")

    async def _lend(self, shard: int, owner: Leader) -> None:
        """Pass the leadership of one shard on, for ever.

        A term begins with the targets of now, of all its services: while another led, they may have
        changed unnoticed, and tuning need not wait until each service has been reconciled.
        """
        while True:
            await owner.lead()
            since = owner.leading_since
            for key in dict.fromkeys((*self._followed, *self.watched.keys())):
                if self._shard_of(key) == shard:
                    self.follow_again(key)
                    await asyncio.sleep(0)
            while owner.is_leading and owner.leading_since == since:
                self.tuner.grant(shard, owner.leads_until)
                await asyncio.sleep(_GRANT_S)
            self.tuner.grant(shard, -math.inf)

    def follow(self, key: str) -> None:
        """Tune this service from now on; at once if what is to be tuned has changed."""
        found = self._find(key)
        if found is None:
            self.forget(key)
            return
        uid, target = found
        followed = self._followed.get(key)
        if followed is not None and followed.uid != uid:  # made again under the same name
            self.forget(key)
            followed = None
        if followed is None:
            self._followed[key] = _Followed(uid, target)
        elif followed.target == target and self.tuner.is_tuning(key):
            return
        else:
            followed.target = target
        self.tuner.follow(uid, target)

    def follow_again(self, key: str) -> None:
        """Follow this service; an exception is logged, not raised."""
        try:
            self.follow(key)
        except Exception:  # noqa: BLE001 - one service that cannot be read must not stop the others
            _log.exception("%s cannot be tuned", key)

    def untuned(self) -> list[str]:
        """Name the services that are there, and that nobody tunes.

        A shard that another replica owns is tuned there.
        """
        keys = {*self.watched.keys()}
        return [key for key in keys if self._is_there(key) and not self._is_tuned(key)]

    def forget(self, key: str) -> None:
        """End the tuning of a service that is gone."""
        self._followed.pop(key, None)
        self.tuner.forget(key)
        self.reports.pop(key, None)

    def concluded(self, uid: str, report: ServiceReport) -> None:
        """Count what a round concluded, and have it told by the replica that writes."""
        if not self._is_followed(uid, report.key):
            return
        self.metrics.tuning_rounds.labels("ok").inc()
        self.metrics.count_outcomes(report)
        if not self.pass_on(uid, report):
            self._keep(report)

    def heard(self, uid: str, report: ServiceReport) -> None:
        """Keep what another replica's round concluded, as of now: its clock may be wrong."""
        if self._is_followed(uid, report.key) and not self._owner(uid).is_leading:
            self._keep(replace(report, at=time.time()))

    def _is_followed(self, uid: str, key: str) -> bool:
        """Tell whether a report is of a service that is there: it may have been on its way."""
        followed = self._followed.get(key)
        return followed is not None and followed.uid == uid

    def _keep(self, report: ServiceReport) -> None:
        """Keep a report, and tell of it where that is news."""
        followed = self._followed[report.key]
        self.reports[report.key] = report
        is_due = self.numbers_are_due(report.key)
        if is_news(report, followed.told, numbers_are_due=is_due):
            followed.told = report
            self.tell(report.key)

    def failed(self, key: str) -> None:  # noqa: ARG002 - the log says which
        """Count a round that failed."""
        self.metrics.tuning_rounds.labels("error").inc()

    def _is_tuned(self, key: str) -> bool:
        shard = self._shard_of(key)
        owner = None if shard is None else self.owners[shard]
        if owner is None or owner.is_leading:
            return self.tuner.is_tuning(key)
        return bool(owner.holder)

    def _shard_of(self, key: str) -> int | None:
        """Give the shard of a service that is there, or of what was tuned under its name."""
        raw, followed = self.watched.service(key), self._followed.get(key)
        uid = raw["metadata"]["uid"] if raw is not None else followed.uid if followed else None
        return None if uid is None else shard_of(uid, len(self.owners))

    def _owner(self, uid: str) -> Leader:
        return self.owners[shard_of(uid, len(self.owners))]

    def _is_there(self, key: str) -> bool:
        raw = self.watched.service(key)
        return raw is not None and not raw["metadata"].get("deletionTimestamp")

    def _find(self, key: str) -> tuple[str, ServiceTarget] | None:
        """Return the service's uid, and what is to be tuned; None where it is gone or going."""
        observation = observe(self.watched, key, None, datetime.now(UTC))
        if observation is None:
            return None
        token = self.token(observation.service)
        status = observation.service.status
        tuning, rollout = status.tuning, status.rollout
        is_compared = rollout is not None and rollout.phase == "Canary"
        target = ServiceTarget(
            key=key,
            spec=tuning_spec(observation.service.spec),
            pods=tuple(
                admin_target(observation.service, pod, token=token)
                for pod in observation.pods
                if pod.is_reachable and pod.is_ready
            ),
            previous_report=previous_report(tuning.experiment if tuning else None),
            image_trial=trial_name(rollout) if rollout and is_compared else "",
            image_trial_s=observation.service.spec.rollout.canary_seconds,
            start_s=start_s(observation),
            replicas=observation.service.spec.replicas,
        )
        return observation.service.metadata.uid, target


def start_s(observation: Observation) -> float:
    """Return how long a pod takes from creation to readiness: the lower median of those there are.

    One that lost its readiness and has it again seems to have started slowly: it is not believed
    beyond what a start may take.
    """
    took_s = [pod.started_in_s for pod in observation.pods if pod.started_in_s is not None]
    longest_s = observation.service.spec.rollout.startup_seconds
    return float(min(median_low(took_s), longest_s)) if took_s else 0.0
