"""Episode: one workload under one arm with one seed, from the first arrival to the last token."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_tuner.pods import PodClient
from paceline_tuner.service_target import PodTarget
from paceline_tuner.step_target import starting_target_ms
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Capacity, Limits
from tune_report.arms.arm import PERIOD_S, Arm, Control, Verdict, WatchesDevice
from tune_report.workloads import PodPart, ReportWorkload

DRAIN_S = 60.0
"""How long what has arrived may take to end; what has not ended then is a miss."""
SHED_AT = 0.7
"""Share of the TTFT target that a request may wait; what has waited longer is dropped.

It stands for the sidecar's forecast at the door, and leaves time for the prompt itself."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moment:
    """One pod after one tick."""

    at_s: float
    pod: int
    batch: int
    budget: int
    target_ms: float | None
    running: int
    waiting: int
    verdict: Verdict
    """Of SLAAchievable."""
    q_r: float
    device: Verdict = ""
    """Of DeviceHealthy."""


@dataclass(frozen=True, slots=True)
class PodRun:
    """Everything that happened on one pod; times count from the pod's start."""

    start_s: float
    requests: Requests
    ttft_ms: Floats
    tpot_ms: Floats
    itl_max_ms: Floats
    finished_s: Floats
    outcome: npt.NDArray[np.int8]
    step_end_s: Floats
    step_ms: Floats
    step_decode: npt.NDArray[np.int64]
    step_predicted_ms: Floats
    moments: tuple[Moment, ...]


@dataclass(slots=True)
class _Live:
    """A pod of the episode, and where it stands."""

    index: int
    part: PodPart
    engine: SimulatedEngine
    client: SimPod
    moments: list[Moment]

    @property
    def target(self) -> PodTarget:
        return PodTarget(f"pod-{self.index}", "http://pod", "token")


class _Fleet:
    """PodClient over several simulated pods."""

    def __init__(self, pods: Mapping[str, SimPod]) -> None:
        self._pods = pods

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self._pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        return await self._pods[pod.name].patch_limits(pod, body)


def run(workload: ReportWorkload, arm: Arm, seed: int, unit_rps: float) -> tuple[PodRun, ...]:
    """Play the episode. Deterministic in its arguments."""
    with arm.patches():
        parts = workload.parts(seed, unit_rps)
        pods = [_live(workload, arm, seed, index, part) for index, part in enumerate(parts)]
        if arm.control is None:
            for pod in pods:
                pod.engine.run_until(workload.duration_s - pod.part.start_s + DRAIN_S)
        else:
            asyncio.run(_controlled(workload, arm, pods))
    return tuple(
        pod_run(pod.engine, pod.part.requests, pod.part.start_s, pod.moments) for pod in pods
    )


def _live(workload: ReportWorkload, arm: Arm, seed: int, index: int, part: PodPart) -> _Live:
    setting, capacity = workload.setting, arm.capacity(workload.setting)
    hardware = setting.hardware
    engine = SimulatedEngine(
        hardware,
        part.requests,
        capacity=capacity,
        limits=_start(workload, arm, capacity),
        pacer=arm.pacer(hardware.model_info(), capacity) if arm.pacer is not None else None,
        seed=seed * 101 + index,
        circumstances=Circumstances(
            disturbances=workload.disturbances,
            collapse_at_s=workload.collapse_at_s,
            shed_ttft_ms=_shed_ms(workload) if arm.sheds else None,
        ),
    )
    return _Live(index, part, engine, SimPod(engine), [])


def _start(workload: ReportWorkload, arm: Arm, capacity: Capacity) -> Limits:
    """Return a fresh pod's limits; under the product's own arm it has a first step target."""
    limits = arm.limits(capacity)
    if not arm.uses_product:
        return limits
    return replace(limits, step_target_ms=starting_target_ms(workload.setting.sla))


def _shed_ms(workload: ReportWorkload) -> float | None:
    target_ms = workload.setting.sla.ttft_p99_ms
    return None if target_ms is None else SHED_AT * target_ms


async def _controlled(workload: ReportWorkload, arm: Arm, pods: list[_Live]) -> None:
    now_s = 0.0
    assert arm.control is not None
    fleet: PodClient = _Fleet({pod.target.name: pod.client for pod in pods})
    control = arm.control(fleet, lambda: now_s, workload.setting)
    while now_s < workload.duration_s + DRAIN_S:
        now_s += PERIOD_S
        for pod in pods:
            if now_s > pod.part.start_s:
                pod.client.run_until(now_s - pod.part.start_s)
            pod.client.is_blind = any(start <= now_s < end for start, end in workload.outages)
        await _tick(workload, control, pods, now_s)


async def _tick(
    workload: ReportWorkload, control: Control, pods: list[_Live], now_s: float
) -> None:
    present = [pod for pod in pods if _is_present(pod, now_s)]
    verdict = await control.tick(tuple(pod.target for pod in present), workload.sla_at(now_s))
    device = control.device if isinstance(control, WatchesDevice) else ""
    for pod in present:
        engine, limits = pod.engine, pod.engine.limits
        pod.moments.append(
            Moment(
                at_s=now_s,
                pod=pod.index,
                batch=limits.max_batch_size,
                budget=limits.token_budget,
                target_ms=limits.step_target_ms,
                running=engine.running,
                waiting=engine.waiting,
                verdict=verdict,
                q_r=engine.pacer.info().q_r if engine.pacer is not None else 1.0,
                device=device,
            )
        )


def _is_present(pod: _Live, now_s: float) -> bool:
    """Tell whether a pod is ready; a removed pod stays until it has served its requests."""
    arrivals_s = pod.part.requests.arrival_s
    last_s = pod.part.start_s + float(arrivals_s[-1]) if len(arrivals_s) else 0.0
    is_serving = pod.engine.running > 0 or pod.engine.waiting > 0
    return now_s > pod.part.start_s and (now_s <= last_s + PERIOD_S or is_serving)


def pod_run(
    engine: SimulatedEngine,
    requests: Requests,
    start_s: float = 0.0,
    moments: Iterable[Moment] = (),
) -> PodRun:
    """Collect what an engine did with its requests; `start_s` is when its pod began."""
    return PodRun(
        start_s=start_s,
        requests=requests,
        ttft_ms=engine.ttft_ms,
        tpot_ms=engine.tpot_ms,
        itl_max_ms=engine.itl_max_ms,
        finished_s=engine.finished_s,
        outcome=engine.outcome,
        step_end_s=engine.steps["at"],
        step_ms=engine.steps["wall_ms"],
        step_decode=engine.steps["decode"],
        step_predicted_ms=engine.steps["predicted_ms"],
        moments=tuple(moments),
    )
