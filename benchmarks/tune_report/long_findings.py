"""Costs of long prompts beside goodput: deep chunks, q_r by context, late admissions, full KV."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline_engine.pacing import make_pacer
from paceline_sim import steps
from paceline_sim.hardware import Hardware
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_sim.state import OK, SHED
from paceline_tuner.service_target import PodTarget
from paceline_tuner.step_target import starting_target_ms
from paceline_wire.limits import Limits
from paceline_wire.step_cost import chunk_attention
from tune_report.arms.arm import PERIOD_S
from tune_report.arms.ours import KEY, START, LoopControl
from tune_report.cache import Code
from tune_report.episode import DRAIN_S, SHED_AT
from tune_report.workloads import ReportWorkload, workload_named

DEPTHS = (0, 8_000, 16_000, 64_000)
CHUNK = 512
_FULL = 0.95
_SKIPPED_STEPS = 500
_POD = PodTarget("pod", "http://pod", "token")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LongFindings:
    """Measurements of one run of the tuner, on one seed, other than its goodput."""

    spread_short: float
    """The 95th of 100 steps' measured over predicted, in the quarter with the least context."""
    spread_long: float
    """The same in the quarter with the most."""
    late: int
    """Requests that were admitted and got their first token too late."""
    shed: int
    """Requests that were refused because they had waited too long."""
    late_tokens: float
    """Share of all prefill that was spent on the late ones."""
    kv_full: float
    """Share of the time in which at least 95 % of the KV blocks were taken."""
    preemptions: int
    bound: str
    """The constraint that most decisions name as binding."""
    bound_share: float


@dataclass(frozen=True, slots=True)
class LongRun:
    """The run that findings are read off."""

    workload: str
    seed: int
    unit_rps: float
    trace: Path | None

    def code(self, code: Code) -> str:
        """The product on the simulated engine, and how it is looked at."""
        return code.findings

    def run(self) -> LongFindings:
        """Serve, and look."""
        workload = workload_named(self.workload, self.trace)
        engine, bounds = asyncio.run(_served(workload, self.seed, self.unit_rps))
        return _read(workload, engine, bounds)


def chunk_ms(hardware: Hardware, before: int) -> float:
    """Milliseconds that a chunk of so many tokens adds to a step, behind `before` others."""
    costs = np.array(
        [getattr(hardware.costs, name) for name in hardware.costs.__dataclass_fields__], np.float64
    )
    pairs = int(chunk_attention(CHUNK, before))
    both = (
        steps.step_ms(hardware.dense_ms, costs, 16, prefill, 16 * 8_000, attention, 17)
        for prefill, attention in ((CHUNK, pairs), (0, 0))
    )
    with_chunk, without = both
    return float(with_chunk - without)


async def _served(
    workload: ReportWorkload, seed: int, unit_rps: float
) -> tuple[SimulatedEngine, Counter[str]]:
    """Play the product as an episode does, with one pod, and keep its engine."""
    (part,) = workload.parts(seed, unit_rps)
    setting = workload.setting
    sla, hardware, capacity = setting.sla, setting.hardware, setting.capacity
    engine = SimulatedEngine(
        hardware,
        part.requests,
        capacity=capacity,
        limits=Limits(*START, step_target_ms=starting_target_ms(sla)),
        pacer=make_pacer(hardware.model_info(), capacity),
        seed=seed * 101,
        circumstances=Circumstances(shed_ttft_ms=SHED_AT * (sla.ttft_p99_ms or np.inf)),
    )
    pod, now_s, bounds = SimPod(engine), 0.0, Counter[str]()
    control = LoopControl(pod, lambda: now_s)
    while now_s < workload.duration_s + DRAIN_S:
        now_s += PERIOD_S
        pod.run_until(now_s)
        await control.tick((_POD,), sla)
        bounds[control.loop.explain(KEY, _POD.name)[-1].binding] += 1
    return engine, bounds


def _read(workload: ReportWorkload, engine: SimulatedEngine, bounds: Counter[str]) -> LongFindings:
    done, target_ms = engine.steps[_SKIPPED_STEPS:], workload.setting.sla.ttft_p99_ms
    known = done["predicted_ms"] > 0
    ratio = done["wall_ms"][known] / done["predicted_ms"][known]
    context = done["context"][known]
    few, many = np.quantile(context, (0.25, 0.75))
    late = (engine.outcome == OK) & (engine.ttft_ms > (target_ms or np.inf))
    prefill = engine.requests.prompt - engine.requests.cached
    full = engine.steps["kv_used"] >= _FULL * engine.capacity.num_blocks
    bound, times = bounds.most_common(1)[0]
    return LongFindings(
        spread_short=_q95(ratio, context <= few),
        spread_long=_q95(ratio, context >= many),
        late=int(late.sum()),
        shed=int((engine.outcome == SHED).sum()),
        late_tokens=float(prefill[late].sum() / prefill[engine.outcome == OK].sum()),
        kv_full=float(engine.steps["wall_ms"][full].sum() / engine.steps["wall_ms"].sum()),
        preemptions=int(engine.totals[0]["preemptions"]),
        bound=bound,
        bound_share=times / bounds.total(),
    )


def _q95(ratios: npt.NDArray[np.float64], chosen: Mask) -> float:
    return float(np.quantile(ratios[chosen], 0.95))
