"""Every count and record of this process, in plain integers and lists.

Written by the event loop as things happen, read by `/metrics` and `/runtime/telemetry`.
"""

from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from paceline_sidecar.hot_config import HotConfig
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome, miss_reason
from paceline_sidecar.metrics.histogram import Histogram
from paceline_sidecar.metrics.key_counts import KeyCounts
from paceline_sidecar.metrics.ring import Ring, Sequence
from paceline_sidecar.metrics.sketch import GapSketch
from paceline_sidecar.metrics.step_counts import StepCounts
from paceline_sidecar.metrics.vllm_counts import VllmCounts
from paceline_wire import EngineTelemetry, LimitsState, StepRecord
from paceline_wire.limits import Lane

LANES: tuple[Lane, ...] = get_args(Lane)
KNOBS = (
    "max_batch_size",
    "token_budget",
    "step_target_ms",
    "pace_tpot_ms",
    "interactive_share",
    "batch_share",
    "batch_step_target_ms",
)
AbortCause = Literal["disconnect", "stop_string", "deadline", "shed", "drain"]

# An 8-billion-parameter model gives a token every 3 to 10 ms: the first edges lie below.
_FAST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075)
_SLOW_S = (0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
LATENCY_EDGES_S = (*_FAST_S, *_SLOW_S, 60.0)
STEP_EDGES_S = (*_FAST_S, *_SLOW_S)
STEP_SIZES = (16, 64, 256, 1024, 4096)

_STEPS_KEPT = 20_000
_REQUESTS_KEPT = 5_000


class LaneCounts:
    """The counts of one lane."""

    def __init__(self, lane: Lane) -> None:
        self.ttft_s = Histogram(LATENCY_EDGES_S)
        self.tpot_s = Histogram(LATENCY_EDGES_S)
        self.itl_s = Histogram(LATENCY_EDGES_S)
        self.e2e_s = Histogram(LATENCY_EDGES_S)
        self.queue_s = Histogram(LATENCY_EDGES_S)
        self.outcomes: Counter[Outcome] = Counter()
        self.met = 0
        self.missed: Counter[str] = Counter()
        self.in_time: Counter[str] = Counter()
        """Requests whose first token came within the target, by class of prompts."""
        self.late: Counter[str] = Counter()
        self.gaps = GapSketch(lane)


@dataclass(slots=True)
class _Run:
    """Counts consecutive equal gaps at once: most streams of one step have the same gap."""

    lane: Lane = "interactive"
    gap_ms: float = -1.0
    now: float = 0.0
    is_slow: bool = False
    times: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.times = int(self.gap_ms >= 0)


class Ledger:
    """All counts and records of the process."""

    def __init__(self) -> None:
        self.sequence = Sequence()
        self.steps: Ring[StepRecord] = Ring(_STEPS_KEPT, self.sequence)
        self.requests: Ring[FinishedRequest] = Ring(_REQUESTS_KEPT, self.sequence)
        self._lanes: dict[Lane, LaneCounts] = {lane: LaneCounts(lane) for lane in LANES}
        self._vllm = VllmCounts()
        self._run = _Run()
        self.keys = KeyCounts()
        self.step_s = {size: Histogram(STEP_EDGES_S) for size in (*STEP_SIZES, None)}
        self.batches = StepCounts()
        self.host_s = 0.0
        self.refusals: Counter[str] = Counter()
        self.refused_connections: Counter[str] = Counter()
        self.aborts: Counter[AbortCause] = Counter()
        self.limit_changes: Counter[str] = Counter()
        self.engine_starts = 0
        self.engine_faults = 0
        self.telemetry: EngineTelemetry | None = None
        """The newest heartbeat; None while no engine is ready."""
        self.config = HotConfig()

    def first_token(self, lane: Lane, ttft_s: float) -> None:
        """Record a request's first token."""
        self._lanes[lane].ttft_s.observe(ttft_s)
        self._vllm.ttft_s.observe(ttft_s)

    def gap(self, lane: Lane, gap_ms: float, now: float) -> bool:
        """Record the gap between two tokens; return whether it is longer than the target."""
        run = self._run
        if run.gap_ms == gap_ms and run.now == now and run.lane == lane:
            run.times += 1
            return run.is_slow
        self._count_run()
        target = self.config.sla_of(lane).itl_p99_ms
        self._run = _Run(lane, gap_ms, now, is_slow=target is not None and gap_ms > target)
        return self._run.is_slow

    def _count_run(self) -> None:
        run, self._run = self._run, _Run()
        if run.times:
            counts = self._lanes[run.lane]
            counts.itl_s.observe(run.gap_ms / 1e3, run.times)
            counts.gaps.add(run.gap_ms, run.now, run.times)
            self._vllm.itl_s.observe(run.gap_ms / 1e3, run.times)

    @property
    def lanes(self) -> dict[Lane, LaneCounts]:
        """The counts of each lane."""
        self._count_run()
        return self._lanes

    @property
    def vllm(self) -> VllmCounts:
        """The counts behind the `vllm:` family."""
        self._count_run()
        return self._vllm

    def ended(self, record: FinishedRequest) -> None:
        """Record the end of a request, whatever its outcome."""
        self.requests.add(record)
        counts = self._lanes[record.lane]
        counts.outcomes[record.outcome] += 1
        if record.queue_ms is not None:
            counts.queue_s.observe(record.queue_ms / 1e3)
        if record.tpot_ms is not None:
            counts.tpot_s.observe(record.tpot_ms / 1e3)
        if record.outcome == "ok":
            counts.e2e_s.observe(record.e2e_ms / 1e3)
        # A client that left was offered nothing that could have been missed.
        if record.outcome != "cancelled":
            missed = miss_reason(record, self.config.sla_of(record.lane))
            if missed is None:
                counts.met += 1
            else:
                counts.missed[missed] += 1
        self._count_class(record, counts)
        self._vllm.ended(record)
        self.keys.ended(record)

    def _count_class(self, record: FinishedRequest, counts: LaneCounts) -> None:
        mine = self.config.sla_of(record.lane).class_of(record.prompt_tokens)
        if mine is None:
            return
        if record.ttft_ms is not None and record.ttft_ms <= mine.ttft_p99_ms:
            counts.in_time[mine.label] += record.outcome != "cancelled"
        elif record.ttft_ms is not None or record.outcome not in {"ok", "cancelled"}:
            counts.late[mine.label] += 1

    def heartbeat(self, message: EngineTelemetry) -> None:
        """Record the steps and the load that the engine reports."""
        self.telemetry = message
        for step in message.steps:
            self.steps.add(step)
            tokens = step.decode + step.prefill
            size = next((size for size in STEP_SIZES if tokens <= size), None)
            self.step_s[size].observe(step.wall_ms / 1e3)
            self.batches.add(step)
            self.host_s += step.host_ms / 1e3
            self._vllm.iteration_tokens.observe(tokens)

    def limits_changed(self, before: LimitsState, after: LimitsState) -> None:
        """Count each knob whose requested value has changed."""
        for knob in KNOBS:
            if getattr(before.requested, knob) != getattr(after.requested, knob):
                self.limit_changes[knob] += 1

    def follow(self, config: HotConfig) -> None:
        """Judge each lane by these targets from now on, with a histogram edge at each of them."""
        self.config = config
        for lane, counts in self.lanes.items():
            sla = config.sla_of(lane)
            edges = {each.ttft_p99_ms / 1e3 for each in sla.ttft_by_prompt_tokens}
            counts.ttft_s.keep_edges((*_edge(sla.ttft_p99_ms), *edges))
            counts.tpot_s.keep_edges(_edge(sla.tpot_p99_ms))
            counts.itl_s.keep_edges(_edge(sla.itl_p99_ms))
            counts.e2e_s.keep_edges(_edge(sla.e2e_p99_ms))

    def copy(self) -> "Ledger":
        """Return the counts as they are now; the records are shared, and not for threads."""
        self._count_run()
        copied: Ledger = _copied(self)
        return copied


def _copied(value: Any) -> Any:
    """Copy counts and what holds them; anything else is shared."""
    match value:
        case Histogram() | Counter():
            return value.copy()
        case dict():
            return {key: _copied(each) for key, each in value.items()}
        case Ledger() | LaneCounts() | VllmCounts() | KeyCounts() | StepCounts():
            copied = copy(value)
            vars(copied).update({name: _copied(each) for name, each in vars(value).items()})
            return copied
        case _:
            return value


def _edge(target_ms: float | None) -> tuple[float, ...]:
    return () if target_ms is None else (target_ms / 1e3,)
