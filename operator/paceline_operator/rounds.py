"""The tuner's rounds: each service on its own interval, and at once when its spec changes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.experiment_status import previous_report
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.observe import ObservedPod, Watched, observe
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import PodTarget, ServiceTarget

_ADMIN_PORT = 8001

_log = logging.getLogger(__name__)


class ServiceTuner(Protocol):
    """Tunes the pods of one service, round by round."""

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        """Read the pods, decide, change their limits, conclude."""
        ...

    def forget(self, key: str) -> None:
        """Drop a service that is gone."""
        ...


@dataclass(slots=True)
class Rounds:
    """Runs one task for each service; `reports` holds the last conclusion about each."""

    tuner: ServiceTuner
    watched: Watched
    leader: Leader
    token: Callable[[InferenceService], str | None]
    concluded: Callable[[str], None]
    """Called with the key after each round."""
    metrics: Metrics
    reports: dict[str, ServiceReport] = field(init=False, default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(init=False, default_factory=dict)
    _news: dict[str, asyncio.Event] = field(init=False, default_factory=dict)
    _targets: dict[str, ServiceTarget] = field(init=False, default_factory=dict)

    def follow(self, key: str) -> None:
        """Tune this service from now on; at once if what is to be tuned has changed."""
        target = self._target(key)
        if target is None:
            return
        if key not in self._tasks:
            self._news[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._rounds(key), name=f"tune {key}")
        elif target != self._targets.get(key):
            self._news[key].set()

    def forget(self, key: str) -> None:
        """End the rounds of a service that is gone."""
        if task := self._tasks.pop(key, None):
            task.cancel()
        self.tuner.forget(key)
        for memory in (self._news, self._targets, self.reports):
            memory.pop(key, None)

    async def stop(self) -> None:
        """End all rounds."""
        tasks = [*self._tasks.values()]
        for key in [*self._tasks]:
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rounds(self, key: str) -> None:
        while True:
            await self.leader.lead()
            self._news[key].clear()
            target = self._target(key)
            if target is None:
                return
            await self._round(target)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(target.spec.interval_s):
                    await self._news[key].wait()

    async def _round(self, target: ServiceTarget) -> None:
        self._targets[target.key] = target
        try:
            self.reports[target.key] = await self.tuner.tick(target)
        except Exception:  # noqa: BLE001 - one failure must not end a service's rounds
            self.metrics.tuning_rounds.labels("error").inc()
            _log.exception("a round of %s failed", target.key)
        else:
            self.metrics.tuning_rounds.labels("ok").inc()
            self.metrics.count_outcomes(self.reports[target.key])
            self.concluded(target.key)

    def _target(self, key: str) -> ServiceTarget | None:
        observation = observe(self.watched, key, None, datetime.now(UTC))
        if observation is None:
            return None
        token = self.token(observation.service)
        pods = observation.pods if token else ()
        tuning = observation.service.status.tuning
        return ServiceTarget(
            key=key,
            spec=tuning_spec(observation.service.spec),
            pods=tuple(
                _pod_target(pod, token or "") for pod in pods if pod.is_reachable and pod.is_ready
            ),
            previous_report=previous_report(tuning.experiment if tuning else None),
        )


def _pod_target(pod: ObservedPod, token: str) -> PodTarget:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return PodTarget(
        name=pod.name, admin_url=f"http://{host}:{_ADMIN_PORT}", token=token, node=pod.node
    )
