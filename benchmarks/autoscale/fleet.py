"""Fleet: pods that come and go as an autoscaler says, under clients, until the ramp is over."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from autoscale.horizontal import SYNC_S, Seen
from autoscale.pods import SPEC, Pod, Settled, an_engine
from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_tuner.arrival_trend import COUNTED_S, ServiceArrivals
from paceline_tuner.loop import TuningLoop
from paceline_tuner.recommendation import Recommendation
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry

PERIOD_S: Final = 5.0
_SCRAPED_S: Final = 30.0
"""So old is a metric that an autoscaler sees: a scrape's interval, and what lies between."""
_HEARD_S: Final = 30.0


def turns(replicas: Sequence[int]) -> int:
    """Count how often a number of replicas changed its direction."""
    steps = [after - before for before, after in pairwise(replicas) if after != before]
    return sum(one * other < 0 for one, other in pairwise(steps))


class Scaler(Protocol):
    """Decides how many replicas there shall be."""

    def sync(self, now: float, seen: Seen) -> int:
        """Return the replicas that are wanted from now on."""
        ...


@dataclass
class Fleet:
    """Requests go to the pods that are ready, in turn."""

    requests: Requests
    scaler: Scaler
    settled: Settled
    """One pod at rest; the pods of the fleet are tuned where `is_tuned`."""
    cold_s: float
    is_tuned: bool
    now: float = 0.0
    replicas: list[int] = field(default_factory=list)
    """How many were wanted, at each sync."""
    ready: list[int] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    """The mean λ* of the pods, at each look that knew one."""
    _offered: int = 0
    _seen: deque[tuple[float, Seen]] = field(default_factory=deque)
    _arrivals: ServiceArrivals = field(default_factory=ServiceArrivals)
    _ahead: Recommendation = field(default_factory=Recommendation)
    _at_once: Recommendation = field(default_factory=Recommendation)
    """Without a look ahead."""

    def __post_init__(self) -> None:
        """Make the tuner, which only tuned pods are given to."""
        self._loop = TuningLoop(self, lambda: self.now)
        self._by_name: dict[str, Pod] = {}

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Read a pod, as its sidecar answers."""
        return await self._by_name[pod.name].pod.get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change a pod's limits, as its sidecar does."""
        return await self._by_name[pod.name].pod.patch_limits(pod, body)

    async def run(self, seconds: float, *, replicas: int) -> None:
        """Begin with so many pods that are ready; serve, tune and scale."""
        for _ in range(replicas):
            self._start(ready_at=0.0)
        while self.now < seconds:
            self._serve(self.now + PERIOD_S)
            self._seen.append((self.now, await self._look()))
            if self.now % SYNC_S == 0:
                self._scale()

    @property
    def turns(self) -> int:
        """How often the number of replicas changed its direction."""
        return turns(self.replicas)

    @property
    def pod_minutes(self) -> float:
        """Minutes of all pods, from their creation until they ended or the ramp did."""
        return sum(min(pod.ended_at, self.now) - pod.created_at for pod in self.pods) / 60

    def attained(self, good: Callable[[Pod], np.ndarray], until: float) -> float:
        """The share of the requests that came before `until`, and were good."""
        met = offered = 0
        for pod in self.pods:
            early = pod.pod.engine.jobs["arrival_s"] < until
            met, offered = met + int((good(pod) & early).sum()), offered + int(early.sum())
        return met / max(offered, 1)

    def _serve(self, until: float) -> None:
        ready = [pod for pod in self.pods if pod.is_ready(self.now)]
        end = int(np.searchsorted(self.requests.arrival_s, until))
        chosen = np.arange(self._offered, end)
        for place, pod in enumerate(ready):
            rows = chosen[chosen % len(ready) == place]
            share = {
                column.name: getattr(self.requests, column.name)[rows]
                for column in fields(Requests)
                if column.name not in {"turn_s", "patience_s"}  # they come first, first served
            }
            if len(rows):
                pod.pod.engine.offer(Requests(**share))
        self._offered = end
        for pod in self.pods:
            if pod.ended_at == math.inf:
                pod.pod.run_until(until)
                if pod.left_at <= until and pod.in_flight == 0:
                    pod.ended_at = until
        self.now = until

    async def _look(self) -> Seen:
        """Read what the metrics of this moment say."""
        ready = [pod for pod in self.pods if pod.is_ready(self.now)]
        there = sum(pod.left_at == math.inf for pod in self.pods)
        if self.is_tuned:
            targets = tuple(PodTarget(pod.name, f"http://{pod.name}", "token") for pod in ready)
            report = await self._loop.tick(
                ServiceTarget("ns/name", SPEC, targets, start_s=self.cold_s)
            )
            rates = {pod.name: pod.arrival_rps for pod in report.pods}
            known = [pod.capacity_rps for pod in report.pods if pod.capacity_rps is not None]
            utilization, recommended = report.utilization, report.recommended_replicas
        else:
            rates = {pod.name: self._rate_rps(pod) for pod in ready}
            known = [self.settled.capacity_rps] * len(ready)
            self._arrivals = self._arrivals.seen(rates, self.now)
            ahead_rps = self._arrivals.trend.ahead_rps(_HEARD_S + self.cold_s)
            utilization = sum(rates.values()) / sum(known)
            self._ahead = self._ahead.updated(known, ahead_rps, self.now)
            recommended = self._ahead.replicas
        self._at_once = self._at_once.updated(known, sum(rates.values()), self.now)
        if known:
            self.capacities.append(sum(known) / len(known))
        return Seen(
            replicas=there,
            ready=len(ready),
            utilization=utilization,
            recommended=recommended,
            unforeseen=self._at_once.replicas,
            waiting=sum(pod.pod.engine.waiting for pod in ready),
            in_flight=sum(pod.in_flight for pod in ready),
            busy=[pod.busy(self.now) for pod in ready],
        )

    def _rate_rps(self, pod: Pod) -> float:
        """What arrived within the last minute, as the tuner counts it."""
        arrived = pod.pod.engine.jobs["arrival_s"]
        inside = int(np.searchsorted(arrived, self.now) - np.searchsorted(arrived, self.now - 60))
        return inside / min(COUNTED_S, max(self.now - pod.ready_at, PERIOD_S))

    def _scale(self) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= self.now - _SCRAPED_S:
            self._seen.popleft()
        staying = [pod for pod in self.pods if pod.left_at == math.inf]
        ready = sum(pod.is_ready(self.now) for pod in staying)
        old = self._seen[0][1]
        # How many pods there are it knows at once; what they measure comes later.
        seen = replace(old, replicas=len(staying), ready=ready)
        wanted = self.scaler.sync(self.now, seen)
        self.replicas.append(wanted)
        self.ready.append(ready)
        for pod in staying[wanted:]:  # the newest go first
            pod.left_at = self.now
        for _ in range(wanted - len(staying)):
            self._start(ready_at=self.now + self.cold_s)

    def _start(self, *, ready_at: float) -> None:
        number = len(self.pods)
        engine = an_engine(number, None if self.is_tuned else self.settled)
        pod = SimPod(engine, instance=f"instance-{number}")
        pod.run_until(self.now)
        self.pods.append(Pod(f"pod-{number}", pod, self.now, ready_at))
        self._by_name[f"pod-{number}"] = self.pods[-1]
