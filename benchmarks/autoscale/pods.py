"""Pods of the fleet: simulated engines, tuned by the tuner itself or settled at what it found."""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import CPU_135M
from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import Circumstances, SettledPacer, SimulatedEngine
from paceline_sim.state import OK
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_wire.limits import Capacity, Limits

SPEC: Final = TuningSpec(sla=SLA(itl_p99_ms=300.0, ttft_p99_ms=6000.0), config_hash="one")
_TTFT_MS: Final = 6000.0
_CAPACITY: Final = Capacity(64, 2048, 4096, 16, 4096)
_MIN_PREFILL: Final = 16
_BUSY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Settled:
    """Where the tuner comes to rest on one such pod under a steady load."""

    limits: Limits
    capacity_rps: float
    """λ*."""
    q_r: float
    in_flight: float
    """Mean requests inside at four fifths of λ*: what a load test of one pod shows."""


def nobody() -> Requests:
    """No requests: the fleet offers them as they come."""
    none = np.zeros(0, np.int64)
    return Requests(np.zeros(0), none, none, none, np.zeros(0, np.int8))


def an_engine(number: int, settled: Settled | None) -> SimulatedEngine:
    """A small model on a CPU; who would wait longer than the SLA's first token is refused."""
    return SimulatedEngine(
        CPU_135M,
        nobody(),
        capacity=_CAPACITY,
        limits=settled.limits if settled else Limits(64, 2048),
        pacer=(
            SettledPacer(settled.q_r, _MIN_PREFILL)
            if settled
            else make_pacer(CPU_135M.model_info(), _CAPACITY)
        ),
        seed=number + 1,
        circumstances=Circumstances(shed_ttft_ms=_TTFT_MS),
    )


@dataclass
class Pod:
    """One pod from its creation to its end."""

    name: str
    pod: SimPod
    created_at: float
    ready_at: float
    left_at: float = math.inf
    ended_at: float = math.inf
    _read: int = field(default=0)

    def is_ready(self, now: float) -> bool:
        """Whether it takes requests."""
        return self.ready_at <= now < self.left_at

    @property
    def in_flight(self) -> int:
        """Requests inside, those that wait included."""
        return self.pod.engine.running + self.pod.engine.waiting

    def busy(self, now: float) -> float:
        """The share of the last half minute that its steps took."""
        steps = self.pod.engine.steps[-2048:]
        recent = steps[steps["at"] > now - _BUSY_S]
        return min(1.0, float(recent["wall_ms"].sum()) / 1e3 / _BUSY_S)

    def met(self) -> np.ndarray:
        """Per request: whether it was served, its first token in time and its pace kept."""
        engine = self.pod.engine
        is_ok = (engine.outcome == OK) & (engine.ttft_ms <= _TTFT_MS)
        kept: np.ndarray = is_ok & ~(engine.tpot_ms > 300.0)
        return kept
