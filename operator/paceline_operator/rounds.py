"""The tuner's rounds: each service on its own interval, and at once when its spec changes."""

import asyncio
import contextlib
import logging
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.admin_port import admin_target
from paceline_operator.errors import NotLeadingError
from paceline_operator.experiment_status import previous_report
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Watched, observe
from paceline_operator.report_news import is_news
from paceline_operator.rollout.step import trial_name
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget

# Of a service without a pod that can be asked.
_IDLE_S = 300.0

_log = logging.getLogger(__name__)


def next_round(uid: str, now: float, interval_s: float) -> float:
    """Give the time of the round after one that begins now: its own phase, half a round away.

    Rounds that began together, as at the operator's start, do not stay together.
    """
    phase_s = zlib.crc32(uid.encode()) / 2**32 * interval_s
    earliest = now + interval_s / 2
    return phase_s + math.ceil((earliest - phase_s) / interval_s) * interval_s


class ServiceTuner(Protocol):
    """Tunes the pods of one service, round by round."""

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        """Read the pods, decide, change their limits, conclude."""
        ...

    def forget(self, key: str) -> None:
        """Drop a service that is gone."""
        ...


@dataclass(slots=True)
class _Followed:
    """The rounds of one service."""

    uid: str
    task: asyncio.Task[None]
    news: asyncio.Event
    """Set where a round should not wait for the interval's end."""
    target: ServiceTarget | None = None
    """What the last round was about."""
    told: ServiceReport | None = None
    """The last report that was told."""


@dataclass(slots=True)
class Rounds:
    """Runs one task for each service; `reports` holds the last conclusion about each."""

    tuner: ServiceTuner
    watched: Watched
    leader: Leader
    token: Callable[[InferenceService], str]
    concluded: Callable[[str], None]
    """Called with the key after a round that found something to tell."""
    numbers_are_due: Callable[[str], bool]
    """Whether the status of this key may be written for its numbers alone."""
    metrics: Metrics
    reports: dict[str, ServiceReport] = field(init=False, default_factory=dict)
    _followed: dict[str, _Followed] = field(init=False, default_factory=dict)

    def follow(self, key: str) -> None:
        """Tune this service from now on; at once if what is to be tuned has changed."""
        found = self._find(key)
        if found is None:
            return
        uid, target = found
        followed = self._followed.get(key)
        if followed is not None and followed.uid != uid:  # made again under the same name
            self.forget(key)
            followed = None
        if followed is None or followed.task.done():
            news = asyncio.Event()
            task = asyncio.create_task(self._rounds(key, uid, news), name=f"tune {key}")
            self._followed[key] = _Followed(uid, task, news)
        elif target != followed.target:
            followed.news.set()

    def untuned(self) -> list[str]:
        """Name the services that are there, and whose rounds have ended or never began."""
        tuned = {key for key, each in self._followed.items() if not each.task.done()}
        return [key for key in {*self.watched.keys()} - tuned if self._is_there(key)]

    def forget(self, key: str) -> None:
        """End the rounds of a service that is gone."""
        if followed := self._followed.pop(key, None):
            followed.task.cancel()
        self.tuner.forget(key)
        self.reports.pop(key, None)

    async def stop(self) -> None:
        """End all rounds."""
        tasks = [followed.task for followed in self._followed.values()]
        for key in [*self._followed]:
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rounds(self, key: str, uid: str, news: asyncio.Event) -> None:
        """Tune this very service until it is gone."""
        while True:
            await self.leader.lead()
            news.clear()
            found = self._find(key)
            if found is None or found[0] != uid:
                return
            target = found[1]
            self._followed[key].target = target
            interval_s = target.spec.interval_s if target.pods else _IDLE_S  # pods are news
            next_at = next_round(uid, asyncio.get_running_loop().time(), interval_s)
            await self._round(target)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_at):
                    await news.wait()

    async def _round(self, target: ServiceTarget) -> None:
        try:
            report = self.reports[target.key] = await self.tuner.tick(target)
        except NotLeadingError:
            _log.debug("a round of %s ended with the leadership", target.key)
        except Exception:  # noqa: BLE001 - one failure must not end a service's rounds
            self.metrics.tuning_rounds.labels("error").inc()
            _log.exception("a round of %s failed", target.key)
        else:
            self.metrics.tuning_rounds.labels("ok").inc()
            self.metrics.count_outcomes(report)
            followed, is_due = self._followed[target.key], self.numbers_are_due(target.key)
            if is_news(report, followed.told, numbers_are_due=is_due):
                followed.told = report
                self.concluded(target.key)

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
