"""Pods of the fleet: settled simulated engines, each with a prefix cache and a load report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from balancing.prefixes import PrefixCache
from balancing.sessions import Turn
from balancing.weights import Report
from paceline_engine.pacing import Pacer, make_pacer
from paceline_sidecar.backend import EngineView
from paceline_sidecar.hot_config import HotConfig, Sla
from paceline_sidecar.load_report import LoadMeter
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sim.hardware import H100_70B_TP4, Hardware
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import Circumstances, SettledPacer, SimulatedEngine
from paceline_sim.state import OK, Records
from paceline_tuner.service_spec import SLA
from paceline_wire import LimitsState
from paceline_wire.limits import Limits
from tune_report.episode import SHED_AT

TTFT_MS: Final = 2000.0
TPOT_MS: Final = 60.0
PROMISED: Final = SLA(ttft_p99_ms=TTFT_MS, tpot_p99_ms=TPOT_MS)
FAST: Final = H100_70B_TP4
_MIN_PREFILL: Final = 64
_INSTANCE: Final = "one"


def half_as_fast(hardware: Hardware) -> Hardware:
    """Return the same device with steps that take twice as long."""
    costs = hardware.costs
    return replace(
        hardware,
        name=f"{hardware.name}_HALF",
        dense_ms=2 * hardware.dense_ms,
        costs=replace(
            costs,
            context_ms=2 * costs.context_ms,
            pair_ms=2 * costs.pair_ms,
            row_ms=2 * costs.row_ms,
            mixed_ms=2 * costs.mixed_ms,
        ),
    )


@dataclass(frozen=True, slots=True)
class Settled:
    """The limits, margin and λ* that the tuner settles at on one pod of a fleet in round robin."""

    capacity_rps: float
    """λ*."""
    limits: Limits
    q_r: float


def an_engine(hardware: Hardware, settled: Settled | None, seed: int) -> SimulatedEngine:
    """Start an engine without requests; unsettled it has the product's own pacer.

    Who has waited for 0.7 of the TTFT target is refused, which stands for the sidecar's forecast.
    """
    capacity = hardware.capacity(max_batch_size=256, max_token_budget=8192, max_model_len=16_384)
    pacer: Pacer | SettledPacer
    if settled is None:
        pacer = make_pacer(hardware.model_info(16_384), capacity)
    else:
        pacer = SettledPacer(settled.q_r, _MIN_PREFILL)
    none = np.zeros(0, np.int64)
    return SimulatedEngine(
        hardware,
        Requests(np.zeros(0), none, none, none, np.zeros(0, np.int8)),
        capacity=capacity,
        limits=settled.limits if settled is not None else Limits(256, 8192),
        pacer=pacer,
        seed=seed,
        circumstances=Circumstances(shed_ttft_ms=SHED_AT * TTFT_MS),
    )


@dataclass(slots=True)
class Pod:
    """One pod and what its gateway can know of it."""

    engine: SimulatedEngine
    meter: "Meter | None" = None
    """Makes load reports, where somebody reads them."""
    cache: PrefixCache = field(default_factory=PrefixCache)
    _turns: list[Turn] = field(default_factory=list)
    _num_ended: int = 0

    def advance(self, now_s: float) -> None:
        """Serve until `now_s`; who has ended leaves a prompt and an answer in the cache."""
        self.engine.run_until(now_s)
        jobs, ended = self.engine.jobs, self.engine.ended
        while self._num_ended < len(ended):
            place = int(ended[self._num_ended])
            if jobs["finished_s"][place] > now_s:  # in the step that is under way
                break
            self._num_ended += 1
            if jobs["outcome"][place] == OK:
                self.cache.keep(self._turns[place], self._room())
        if self.meter is not None:
            self.meter.watch(jobs, now_s)

    def take(self, turn: Turn) -> None:
        """Get a request."""
        self.advance(turn.at_s)
        self._turns.append(turn)
        if self.meter is not None:
            self.meter.offered(turn.at_s)
        held = self.cache.find(turn)
        self.engine.offer_one(turn.at_s, prompt=turn.prompt, output=turn.output, cached=held)

    def remember(self, turn: Turn) -> None:
        """Hold a request of before the first second, as if it had been served at once."""
        self.cache.find(turn)
        self.cache.keep(turn, self._room())

    @property
    def active(self) -> int:
        """Requests inside, as of the last advance."""
        return len(self._turns) - self._num_ended

    def met(self, *, since_s: float, until_s: float) -> tuple[Records, np.ndarray]:
        """Return the requests of a time, and of each whether it met the SLA."""
        engine = self.engine
        arrived = engine.jobs["arrival_s"]
        chosen = (arrived >= since_s) & (arrived < until_s)
        is_met = (engine.outcome == OK) & (engine.ttft_ms <= TTFT_MS)
        is_met &= ~(engine.tpot_ms > TPOT_MS)
        return engine.jobs[chosen], is_met[chosen]

    def _room(self) -> int:
        """Tokens of KV memory that no running request holds."""
        totals = self.engine.totals[0]
        return int(totals["free_blocks"] * totals["block_size"])


class Meter:
    """The sidecar's own load report, told of what the simulated engine does."""

    def __init__(self, settled: Settled) -> None:
        """Know λ* as the operator would have told it."""
        self.newest: Report | None = None
        self._now_s = 0.0
        self._meter = LoadMeter(lambda: self._now_s)
        self._meter.told(settled.capacity_rps, _INSTANCE)
        self._view = EngineView(phase="ready", instance=_INSTANCE, limits=_held(settled.limits))
        self._ledger = Ledger()
        sla = Sla(ttft_p99_ms=TTFT_MS, tpot_p99_ms=TPOT_MS)
        self._ledger.follow(HotConfig(sla=sla))
        self._unbegun: list[int] = []
        self._unanswered: list[int] = []
        self._unended: list[int] = []
        self._count = 0

    def offered(self, now_s: float) -> None:
        """Count a request that comes."""
        self._now_s = now_s
        self._meter.offered()
        for waiting in (self._unbegun, self._unanswered, self._unended):
            waiting.append(self._count)
        self._count += 1

    def watch(self, jobs: Records, now_s: float) -> None:
        """Count, in the order of time, who began, was answered and ended until now."""
        events = [(at, 0, place) for at, place in _taken(self._unbegun, jobs, "scheduled_s", now_s)]
        events += [(at, 1, place) for at, place in _taken(self._unanswered, jobs, "first_s", now_s)]
        events += [(at, 2, place) for at, place in _taken(self._unended, jobs, "finished_s", now_s)]
        for at, kind, place in sorted(events):
            self._now_s = at
            if kind == 0:
                self._meter.began()
            elif kind == 1:
                load = self._meter.load(self._view, self._ledger, waiting=len(self._unbegun))
                self.newest = Report(at, load.served_rps, load.utilization)
            else:
                self._end(jobs[place])

    def _end(self, job: np.void) -> None:
        is_ok = job["outcome"] == OK
        if not math.isnan(job["scheduled_s"]):
            self._meter.ended()
        tokens = int(job["tokens"])
        self._ledger.ended(
            FinishedRequest(
                "interactive",
                float(job["arrival_s"]),
                float(job["finished_s"]),
                "ok" if is_ok else "shed",
                ttft_ms=float(job["first_s"] - job["arrival_s"]) * 1e3 if is_ok else None,
                tpot_ms=float(job["last_s"] - job["first_s"]) * 1e3 / (tokens - 1)
                if is_ok and tokens > 1
                else None,
            )
        )


def _taken(waiting: list[int], jobs: Records, name: str, now_s: float) -> list[tuple[float, int]]:
    """Take out of `waiting` those whose time has come; who was refused leaves without one."""
    times, ends = jobs[name], jobs["finished_s"]
    taken, kept = [], []
    for place in waiting:
        at = float(times[place])
        if at <= now_s:
            taken.append((at, place))
        elif not (math.isnan(at) and ends[place] <= now_s):
            kept.append(place)
    waiting[:] = kept
    return taken


def _held(limits: Limits) -> LimitsState:
    capacity = FAST.capacity(max_batch_size=256, max_token_budget=8192)
    return LimitsState(
        call=0,
        requested=limits,
        effective=limits,
        certified=limits,
        capacity=capacity,
        epoch=1,
        since_step=0,
        lease_expires_at=None,
        lease_lost=False,
        clamped=[],
    )


@dataclass
class Pods:
    """All pods, as a gateway sees them."""

    pods: Sequence[Pod]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Name them."""
        self.names = tuple(f"pod-{number}" for number in range(len(self.pods)))

    def active(self, pod: int, now_s: float) -> int:
        """Count the requests that the pod has not ended."""
        self.pods[pod].advance(now_s)
        return self.pods[pod].active

    def report(self, pod: int, now_s: float) -> Report | None:
        """Return the report of the pod's newest answer."""
        meter = self.pods[pod].meter
        if meter is None:
            return None
        self.pods[pod].advance(now_s)
        return meter.newest
