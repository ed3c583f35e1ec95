"""A service of several simulated pods under the tuner's loop and a horizontal autoscaler.

The autoscalers are models of Kubernetes' for an Object metric with a target of type Value, and for
an External metric with one of type AverageValue, which KEDA gives it: their tolerance, their
stabilisation windows and their sync period, as `autoscaling/v2` describes them.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Final

import numpy as np

from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK
from paceline_testing.trial import PERIOD_S
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry

_SYNC_S: Final = 15.0
_TOLERANCE: Final = 0.1
_SCRAPED_S: Final = 30.0
"""A metric is seen this late: a scrape interval, and the adapter's own."""


@dataclass
class Autoscaler:
    """Follows λ/λ* as examples/hpa.yaml has it, and remembers what it wanted."""

    target: float = 0.8
    least: int = 1
    most: int = 8
    up_window_s: float = 120.0
    down_window_s: float = 300.0
    _past: list[tuple[float, int]] = field(default_factory=list)

    def read(self, report: ServiceReport) -> float | None:
        """Return the metric that it scales on."""
        return report.utilization

    def sync(self, now: float, *, replicas: int, ready: int, metric: float | None) -> int:
        """Return how many replicas are wanted; without a metric, as many as there are."""
        if metric is None:
            return replicas
        fastest = max(2 * replicas, replicas + 4)  # the default policies, per 15 s
        wanted = min(max(self._wanted(replicas, ready, metric), self.least), self.most, fastest)
        self._past = [each for each in self._past if each[0] > now - self.down_window_s]
        self._past.append((now, wanted))
        up = min(count for at, count in self._past if at >= now - self.up_window_s)
        down = max(count for _, count in self._past)
        return up if replicas < up else min(replicas, down)

    def _wanted(self, replicas: int, ready: int, metric: float) -> int:
        ratio = metric / self.target
        return replicas if abs(ratio - 1) <= _TOLERANCE else math.ceil(ratio * ready)


@dataclass
class RecommendedAutoscaler(Autoscaler):
    """Follows the recommended replicas as examples/keda.yaml has it, without its fallback."""

    target: float = 1.0
    up_window_s: float = 0.0
    down_window_s: float = 120.0

    def read(self, report: ServiceReport) -> float | None:
        """Return the metric that it scales on."""
        return report.recommended_replicas

    def _wanted(self, replicas: int, ready: int, metric: float) -> int:  # noqa: ARG002 - of an average
        wanted = math.ceil(metric / self.target)
        # The example's tolerance is none for scaling up.
        return replicas if 0 <= 1 - wanted / replicas <= _TOLERANCE else wanted


@dataclass
class _Replica:
    """One pod of the service."""

    pod: SimPod
    ready_at: float
    is_leaving: bool = False


@dataclass
class AutoscaledService:
    """Pods that come and go as the autoscaler says; requests go to the ready ones in turn."""

    requests: Requests
    engine: Callable[[int], SimulatedEngine]
    """Makes the engine of the pod of this number, without any request."""
    spec: TuningSpec
    autoscaler: Autoscaler = field(default_factory=Autoscaler)
    start_s: float = 60.0
    """From a pod's creation to its readiness."""
    now: float = 0.0
    replicas: list[int] = field(default_factory=list)
    """How many were wanted, at each sync."""
    reports: list[ServiceReport] = field(default_factory=list)
    _all: dict[str, _Replica] = field(default_factory=dict)
    _offered: int = 0
    _seen: deque[tuple[float, float | None]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.loop = TuningLoop(self, lambda: self.now)
        self._start(ready_at=0.0)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self._all[pod.name].pod.get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self._all[pod.name].pod.patch_limits(pod, body)

    async def run(self, seconds: float) -> ServiceReport:
        """Serve, tune and scale."""
        for _ in range(int(seconds / PERIOD_S)):
            self._serve(self.now + PERIOD_S)
            pods = tuple(PodTarget(name, f"http://{name}", "token") for name in self._ready())
            target = ServiceTarget(
                "ns/name",
                self.spec,
                pods,
                start_s=self.start_s,
                replicas=sum(not replica.is_leaving for replica in self._all.values()),
            )
            report = await self.loop.tick(target)
            self.reports.append(report)
            self._seen.append((self.now, self.autoscaler.read(report)))
            if self.now % _SYNC_S == 0:
                self._scale()
        return self.reports[-1]

    @property
    def turns(self) -> int:
        """How often the number of replicas changed its direction."""
        steps = [b - a for a, b in pairwise(self.replicas) if b != a]
        return sum(a * b < 0 for a, b in pairwise(steps))

    @property
    def changes(self) -> list[dict[str, object]]:
        """Every change of a pod's limits that was accepted."""
        return [
            body
            for replica in self._all.values()
            for body in replica.pod.bodies
            if "max_batch_size" in body
        ]

    def attained(
        self, since: float, until: float, good: Callable[[SimulatedEngine], object]
    ) -> float:
        """Share of the requests that came in this time, ended well, and were `good`."""
        met = offered = 0
        for replica in self._all.values():
            engine = replica.pod.engine
            chosen = (engine.jobs["arrival_s"] >= since) & (engine.jobs["arrival_s"] < until)
            offered += int(chosen.sum())
            met += int((chosen & (engine.outcome == OK) & np.asarray(good(engine))).sum())
        return met / max(offered, 1)

    def _serve(self, until: float) -> None:
        """Give each request to the next ready pod, then let all pods step."""
        names = self._ready()
        end = int(np.searchsorted(self.requests.arrival_s, until))
        chosen = np.arange(self._offered, end)
        for place, name in enumerate(names):
            rows = chosen[chosen % len(names) == place]
            share = {
                column.name: getattr(self.requests, column.name)[rows]
                for column in fields(Requests)
                if column.name not in {"turn_s", "patience_s"}  # they come first, first served
            }
            self._all[name].pod.engine.offer(Requests(**share))
        self._offered = end if names else self._offered
        for replica in self._all.values():
            replica.pod.run_until(until)
        self.now = until

    def _scale(self) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= self.now - _SCRAPED_S:
            self._seen.popleft()
        staying = [name for name, replica in self._all.items() if not replica.is_leaving]
        wanted = self.autoscaler.sync(
            self.now,
            replicas=len(staying),
            ready=len(self._ready()),
            metric=self._seen[0][1],
        )
        self.replicas.append(wanted)
        for name in staying[wanted:]:  # the newest go first
            self._all[name].is_leaving = True
        for _ in range(wanted - len(staying)):
            self._start(ready_at=self.now + self.start_s)

    def _start(self, *, ready_at: float) -> None:
        number = len(self._all)
        pod = SimPod(self.engine(number), instance=f"instance-{number}")
        pod.run_until(self.now)
        self._all[f"pod-{number}"] = _Replica(pod, ready_at)

    def _ready(self) -> list[str]:
        return [
            name
            for name, replica in self._all.items()
            if replica.ready_at <= self.now and not replica.is_leaving
        ]
