"""One pod under one loop, on a plant whose clock steps move."""

from dataclasses import dataclass, field

from paceline_testing.plant import Plant
from paceline_testing.plant_pod import PlantPod
from paceline_tuner.decision import Decision
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget

PERIOD_S = 5.0


@dataclass
class Trial:
    """One pod under one loop."""

    plant: Plant
    spec: TuningSpec
    at: float = 0.0
    reports: list[ServiceReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pod = PlantPod(self.plant)
        self.loop = TuningLoop(self.pod, lambda: self.at)

    def untuned(self, seconds: float) -> None:
        """Serve under the limits that the pod started with."""
        self.plant.run_until(self.plant.now + seconds)

    async def run(self, seconds: float) -> ServiceReport:
        for _ in range(int(seconds / PERIOD_S)):
            self.at += PERIOD_S
            self.plant.run_until(self.plant.now + PERIOD_S)
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
        """Share of gaps over the target, measured at the plant."""
        since = self.plant.now - last_s
        recent = [gap_ms for at, gap_ms in self.plant.gaps if at >= since]
        return sum(gap_ms > target_ms for gap_ms in recent) / len(recent)

    def slow_requests(self, target_ms: float, *, last_s: float) -> float:
        """Share of requests whose TPOT is over the target."""
        since = self.plant.now - last_s
        recent = [
            (job.last_at - job.first_at) * 1e3 / (job.tokens - 1)
            for job in self.plant.ended
            if job.arrived_at >= since and job.outcome == "ok"
        ]
        return sum(tpot_ms > target_ms for tpot_ms in recent) / len(recent)
