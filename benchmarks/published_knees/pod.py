"""One simulated pod, as it was published or with the tuner and admission."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import Hardware
from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_tuner.step_target import starting_target_ms
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Limits
from tune_report.arms.arm import PERIOD_S
from tune_report.arms.ours import LoopControl
from tune_report.episode import SHED_AT


@dataclass(frozen=True, slots=True)
class Serving:
    """How a service is served: its device, its limits at the start, and what acts on them."""

    hardware: Hardware
    batch_size: int
    token_budget: int
    max_model_len: int
    sla: SLA | None = None
    """What the tuner keeps; None leaves the limits as they are, and refuses nobody."""

    def engine(self, requests: Requests, seed: int) -> SimulatedEngine:
        """Start an engine with these requests."""
        capacity = self.hardware.capacity(
            max_batch_size=max(256, self.batch_size),
            max_token_budget=self.token_budget,
            max_model_len=self.max_model_len,
        )
        target_ms = None if self.sla is None else starting_target_ms(self.sla)
        return SimulatedEngine(
            self.hardware,
            requests,
            capacity=capacity,
            limits=Limits(self.batch_size, self.token_budget, step_target_ms=target_ms),
            pacer=None
            if self.sla is None
            else make_pacer(self.hardware.model_info(self.max_model_len), capacity),
            seed=seed,
            circumstances=Circumstances(shed_ttft_ms=self._patience_ms),
        )

    @property
    def _patience_ms(self) -> float | None:
        if self.sla is None or self.sla.ttft_p99_ms is None:
            return None
        return SHED_AT * self.sla.ttft_p99_ms


class Fleet:
    """Pods on one clock, and the tuner over them where the service has an SLA."""

    def __init__(self, serving: Serving, engines: list[SimulatedEngine]) -> None:
        """Begin at second 0."""
        self.pods = {f"pod-{place}": SimPod(engine) for place, engine in enumerate(engines)}
        self.limits: list[tuple[float, int, int]] = []
        """Seconds, batch size and token budget of the first pod after each tick."""
        self._sla = serving.sla
        self._next_s = PERIOD_S if serving.sla is not None else math.inf
        self._control: Final = LoopControl(self, lambda: self._next_s)

    async def run_until(self, t_s: float) -> None:
        """Serve until `t_s`; the tuner looks and acts every five seconds."""
        while self._next_s <= t_s:
            self._serve(self._next_s)
            await self._tick()
            self._next_s += PERIOD_S
        self._serve(t_s)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Answer for a pod, as its sidecar would."""
        return await self.pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change a pod's limits."""
        return await self.pods[pod.name].patch_limits(pod, body)

    def _serve(self, t_s: float) -> None:
        for pod in self.pods.values():
            pod.run_until(t_s)

    async def _tick(self) -> None:
        assert self._sla is not None
        await self._control.tick(
            tuple(PodTarget(name, "http://pod", "token") for name in self.pods), self._sla
        )
        first = next(iter(self.pods.values())).engine.limits
        self.limits.append((self._next_s, first.max_batch_size, first.token_budget))
