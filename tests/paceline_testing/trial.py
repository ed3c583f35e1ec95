"""One pod under one loop, on a simulated engine whose clock steps move."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_sim.gaps import gaps_over
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK, SLICE_S
from paceline_tuner.decision import Decision
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry

PERIOD_S = 5.0


@dataclass
class Trial:
    """One pod under one loop, and the loop's `PodClient`."""

    engine: SimulatedEngine
    spec: TuningSpec
    at: float = 0.0
    reports: list[ServiceReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pod = SimPod(self.engine)
        self.loop = TuningLoop(self, lambda: self.at)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self.pod.get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self.pod.patch_limits(pod, body)

    def restart(self, engine: SimulatedEngine) -> None:
        """Put another engine in the pod, which has forgotten all."""
        self.engine, self.pod = engine, SimPod(engine, instance="b")

    def untuned(self, seconds: float) -> None:
        """Serve under the limits that the pod started with."""
        self.pod.run_until(self.engine.now + seconds)

    async def run(self, seconds: float) -> ServiceReport:
        for _ in range(int(seconds / PERIOD_S)):
            self.at += PERIOD_S
            self.pod.run_until(self.engine.now + PERIOD_S)
            pods = (PodTarget("pod", "http://pod", "token"),)
            self.reports.append(await self.loop.tick(ServiceTarget("ns/name", self.spec, pods)))
        return self.reports[-1]

    @property
    def changes(self) -> list[dict[str, object]]:
        return [body for body in self.pod.bodies if "max_batch_size" in body]

    @property
    def decision(self) -> Decision:
        return self.loop.explain("ns/name", "pod")[-1]

    def slow_gaps(self, target_ms: float, *, last_s: float) -> float:
        """Share of gaps over the target, counted by the engine in whole slices of 5 s."""
        counts = self.engine.gap_counts[-int(last_s / SLICE_S) :]
        return float(gaps_over(counts, target_ms).sum() / counts.sum())

    def slow_requests(self, target_ms: float, *, last_s: float) -> float:
        """Share of requests whose TPOT is over the target."""
        jobs, since = self.engine.jobs, self.engine.now - last_s
        recent = self.engine.tpot_ms[(jobs["arrival_s"] >= since) & (jobs["outcome"] == OK)]
        return float((recent > target_ms).mean())
