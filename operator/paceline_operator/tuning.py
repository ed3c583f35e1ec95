"""Tuning: what the tuner is to do, from what the watches know, and what it concluded."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.admin_port import admin_target
from paceline_operator.experiment_status import previous_report
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Watched, observe
from paceline_operator.report_news import is_news
from paceline_operator.rollout.step import trial_name
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget

_GRANT_S: Final = 0.5

_log = logging.getLogger(__name__)


class Tuner(Protocol):
    """Tunes the services that it was told of, in this process or beside it."""

    def grant(self, until: float) -> None:
        """Let limits be changed until then, in monotonic seconds; a past moment ends it."""
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
    """What the tuner was told of one service, and what was told of it."""

    uid: str
    target: ServiceTarget
    told: ServiceReport | None = None
    """The last report that was told."""


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
    tuner: Tuner = field(init=False)
    """To be set before anything is followed: it is made with this as its listener."""
    reports: dict[str, ServiceReport] = field(init=False, default_factory=dict)
    _followed: dict[str, _Followed] = field(init=False, default_factory=dict)

    async def run(self, leader: Leader) -> None:
        """Pass the leadership on, for ever.

        A term begins with the targets of now, of all services: while another led, they may have
        changed unnoticed, and tuning need not wait until each service has been reconciled.
        """
        while True:
            await leader.lead()
            since = leader.leading_since
            for key in dict.fromkeys((*self._followed, *self.watched.keys())):
                self._follow_again(key)
                await asyncio.sleep(0)
            while leader.is_leading and leader.leading_since == since:
                self.tuner.grant(leader.leads_until)
                await asyncio.sleep(_GRANT_S)
            self.tuner.grant(-math.inf)

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

    def _follow_again(self, key: str) -> None:
        try:
            self.follow(key)
        except Exception:  # noqa: BLE001 - one service that cannot be read must not stop the others
            _log.exception("%s cannot be tuned", key)

    def untuned(self) -> list[str]:
        """Name the services that are there, and that nobody tunes."""
        tuned = {key for key in self._followed if self.tuner.is_tuning(key)}
        return [key for key in {*self.watched.keys()} - tuned if self._is_there(key)]

    def forget(self, key: str) -> None:
        """End the tuning of a service that is gone."""
        self._followed.pop(key, None)
        self.tuner.forget(key)
        self.reports.pop(key, None)

    def concluded(self, uid: str, report: ServiceReport) -> None:
        """Keep what a round concluded, and tell of it where that is news."""
        followed = self._followed.get(report.key)
        if followed is None or followed.uid != uid:
            return  # it was on its way when its service went
        self.reports[report.key] = report
        self.metrics.tuning_rounds.labels("ok").inc()
        self.metrics.count_outcomes(report)
        is_due = self.numbers_are_due(report.key)
        if is_news(report, followed.told, numbers_are_due=is_due):
            followed.told = report
            self.tell(report.key)

    def failed(self, key: str) -> None:  # noqa: ARG002 - the log says which
        """Count a round that failed."""
        self.metrics.tuning_rounds.labels("error").inc()

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
        )
        return observation.service.metadata.uid, target
