"""One load of one case in one order, on the simulated engine, and what came of it."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from order.cases import Case
from order.lengths import Known, LengthModel
from order.orders import ARRIVAL, PREDICTED, Candidate, Order, PodPace
from paceline_sim import steps
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import Circumstances, SettledPacer, SimulatedEngine
from paceline_sim.state import OK, Records
from paceline_tuner.step_target import starting_target_ms
from paceline_wire.limits import Limits
from tune_report.episode import DRAIN_S, SHED_AT, pod_run
from tune_report.score import score
from tune_report.workloads import PodPart, ReportWorkload

_SLICE_S = 1.0
"""What has ended is learned, and what comes is put in order, so often."""
_WINDOW_S, _LEAST_EVIDENCE_S = 10.0, 0.5
_Q_R, _MIN_PREFILL = 1.06, 16
_LONGEST = 0.01
_PROBE_S, _PROBE_SEED, _ATTAINED = 240.0, 2000, 0.99
_HALVINGS = 5
Floats = npt.NDArray[np.float64]


class Figures(msgspec.Struct, frozen=True):
    """One run."""

    good_rps: float
    attained: float
    """The least share of requests (TTFT) and gaps (ITL) within their targets."""
    ttft_mean_ms: float
    ttft_p99_ms: float
    e2e_mean_s: float
    slowdown_longest: float | None
    """p99 over the longest 1 % that were served: time to the last token, over that alone."""
    missed_longest: float
    """Share of the longest 1 % whose first token came late or never."""
    missed: float
    """The same of all."""
    length_error: float | None
    """Mean of |ln(predicted median / output)|, over the requests that had a prediction."""
    length_covered: float | None
    """Share of the outputs within their predicted 0.9 quantile."""


@dataclass(slots=True)
class _Predictions:
    """How far predicted lengths were off."""

    errors: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)

    def add(self, model: LengthModel, known: Known, output: int) -> None:
        lengths = model.predict(known)
        if lengths is not None:
            self.errors.append(abs(math.log(lengths.quantile(0.5) / output)))
            self.covered.append(output <= lengths.quantile(0.9))


@dataclass(frozen=True, slots=True)
class Waste:
    """Shares that a better forecast of who comes when could win at most."""

    late: float
    """Of the requests: computed, with the first token too late."""
    computed_again: float
    """Of the prompt tokens: those of requests that were preempted."""


def play(case: Case, order: Order, rps: float, seed: int, duration_s: float) -> Figures:
    """Serve one load in one order. Deterministic in its arguments."""
    engine, requests, predictions = _served(case, order, rps, seed, duration_s)
    return _figures(case, engine, requests, duration_s, predictions)


def waste(case: Case, order: Order, rps: float, seed: int, duration_s: float) -> Waste:
    """Serve as `play` does; return what was computed in vain."""
    engine, requests, _ = _served(case, order, rps, seed, duration_s)
    served = engine.outcome == OK
    late = served & (engine.ttft_ms > case.ttft_s * 1e3)
    needed = int((requests.prompt - requests.cached)[served].sum())
    computed = int(engine.totals["prompt_tokens"][0])
    return Waste(float(np.mean(late)), max(0.0, 1 - needed / computed))


def _served(
    case: Case, order: Order, rps: float, seed: int, duration_s: float
) -> tuple[SimulatedEngine, Requests, _Predictions]:
    requests, known = case.draw(seed, rps, duration_s)
    engine = engine_of(case, rows_of(requests, slice(0, 0), np.zeros(0)), seed)
    model, predictions, num_learned, first = LengthModel(), _Predictions(), 0, 0
    for end_s in np.arange(_SLICE_S, duration_s + _SLICE_S, _SLICE_S):
        for place in engine.ended[num_learned:].tolist():
            if engine.outcome[place] == OK:
                model.learn(known[place], int(requests.output[place]))
        num_learned = len(engine.ended)
        last = int(np.searchsorted(requests.arrival_s, end_s))
        turns, pod = np.empty(last - first), pace_of(engine)
        for row, place in enumerate(range(first, last)):
            output = int(requests.output[place])
            candidate = Candidate(known[place], pod, model, output)
            turns[row] = order.turn_at(float(requests.arrival_s[place]), candidate, case.ttft_s)
            if order.name == PREDICTED:
                predictions.add(model, known[place], output)
        engine.offer(rows_of(requests, slice(first, last), turns))
        engine.run_until(float(end_s))
        first = last
    engine.run_until(duration_s + DRAIN_S)
    return engine, requests, predictions


def capacity_rps(case: Case) -> float:
    """Find the most requests a second that the order of arrival serves at 99 % attainment."""

    def is_served(rps: float) -> bool:
        return play(case, ARRIVAL, rps, _PROBE_SEED, _PROBE_S).attained >= _ATTAINED

    low = high = 0.25
    while is_served(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return float(f"{low:.3g}")


def engine_of(case: Case, requests: Requests, seed: int) -> SimulatedEngine:
    """Start a case's pod; it sheds by the case's target unless requests have a patience."""
    is_own = requests.patience_s is not None
    setting = case.setting
    limits = Limits(
        setting.max_batch_size,
        setting.max_token_budget,
        step_target_ms=starting_target_ms(setting.sla),
    )
    return SimulatedEngine(
        setting.hardware,
        requests,
        capacity=case.capacity,
        limits=limits,
        pacer=SettledPacer(_Q_R, _MIN_PREFILL),
        seed=seed * 101,
        circumstances=Circumstances(shed_ttft_ms=None if is_own else SHED_AT * case.ttft_s * 1e3),
    )


def pace_of(engine: SimulatedEngine) -> PodPace:
    """Sum up the last ten seconds, as the sidecar does from the engine's steps."""
    recent = engine.steps[int(np.searchsorted(engine.steps["at"], engine.now - _WINDOW_S)) :]
    busy = recent[recent["waiting_tokens"] > 0]
    busy_s, wall_s = (float(part["wall_ms"].sum()) / 1e3 for part in (busy, recent))
    tokens, capacity = int(busy["prefill"].sum()), engine.capacity
    return PodPace(
        tokens_per_s=tokens / busy_s if busy_s >= _LEAST_EVIDENCE_S and tokens else None,
        step_s=wall_s / max(len(recent), 1),
        kv_tokens=capacity.num_blocks * capacity.block_size,
        kv_used=float(recent["kv_used"][-1]) / capacity.num_blocks if len(recent) else 0.0,
    )


def rows_of(
    requests: Requests, rows: slice, turn_s: Floats, patience_s: Floats | None = None
) -> Requests:
    """Cut out some requests, with their turns and what they wait for at most."""
    return Requests(
        requests.arrival_s[rows],
        requests.prompt[rows],
        requests.output[rows],
        requests.cached[rows],
        requests.lane[rows],
        turn_s,
        patience_s,
    )


def _figures(
    case: Case,
    engine: SimulatedEngine,
    requests: Requests,
    duration_s: float,
    predictions: _Predictions,
) -> Figures:
    jobs = engine.jobs
    workload = ReportWorkload(case.name, case.setting, _no_parts, case.callers[0][1], duration_s)
    judged = score(workload, (pod_run(engine, requests),))
    served = engine.outcome == OK
    e2e_s = np.asarray(jobs["last_s"] - jobs["arrival_s"], np.float64)
    length = requests.prompt + requests.output
    is_longest = length >= np.quantile(length, 1 - _LONGEST)
    missed = ~(served & (engine.ttft_ms <= case.ttft_s * 1e3))
    longest = np.flatnonzero(is_longest & served)
    slowdowns = [e2e_s[place] / _alone_s(engine, jobs[place]) for place in longest]
    return Figures(
        good_rps=judged.good_rps,
        attained=judged.attainment.least,
        ttft_mean_ms=float(np.mean(engine.ttft_ms[served])),
        ttft_p99_ms=float(np.quantile(engine.ttft_ms[served], 0.99)),
        e2e_mean_s=float(np.mean(e2e_s[served])),
        slowdown_longest=float(np.quantile(slowdowns, 0.99)) if slowdowns else None,
        missed_longest=float(np.mean(missed[is_longest])),
        missed=float(np.mean(missed)),
        length_error=_mean(predictions.errors),
        length_covered=_mean(predictions.covered),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _no_parts(_random: np.random.Generator, _rps: float) -> tuple[PodPart, ...]:
    return ()


def _alone_s(engine: SimulatedEngine, job: Records) -> float:
    """How long a request takes on an idle device, its prompt in steps of the whole budget."""
    hardware, prompt = engine.hardware, int(job["prompt"])
    costs = engine._arrays.costs  # noqa: SLF001 - as the engine's own steps are reckoned
    ms, computed = 0.0, int(job["hits"])
    while computed < prompt:
        chunk = min(engine.capacity.max_token_budget, prompt - computed)
        pairs = int(chunk * (computed + chunk / 2))
        ms += steps.step_ms(hardware.dense_ms, costs, 0, chunk, 0, pairs, 1)
        computed += chunk
    context = int(prompt + job["output"] / 2)
    each_ms = steps.step_ms(hardware.dense_ms, costs, 1, 0, context, 0, 1)
    return (ms + int(job["output"] - 1) * each_ms) / 1e3
