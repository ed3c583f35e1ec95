"""SimulatedEngine: the engine's scheduling without a model, on a clock that steps move."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from paceline_engine.pacing import Pacer, StepShape
from paceline_engine.pacing.pacer import MOST_PROMPTS
from paceline_sim import steps
from paceline_sim.hardware import Disturbance, Hardware
from paceline_sim.noise import noise_factors
from paceline_sim.requests import Requests
from paceline_sim.state import (
    GAP_SLICES_AHEAD,
    LANE,
    MOST_SLICES,
    NUM_BINS,
    OK,
    PREFILL,
    SLICE_S,
    STEP,
    TOTALS,
    EngineArrays,
    Real,
    Records,
    StepFields,
    Whole,
    jobs_of,
)
from paceline_wire import StepRecord
from paceline_wire.limits import Capacity, Limits, clamp

_MOST_FIRST_STEPS = 8192
_FEWEST_ROWS = 64
_RECORDED = [name for name in StepRecord.__struct_fields__ if name in StepFields._fields]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run meets with beside its requests."""

    disturbances: tuple[Disturbance, ...] = ()
    """When the device is slower."""
    collapse_at_s: float = math.inf
    """From then on no prompt token is found in the prefix cache."""
    shed_ttft_ms: float | None = None
    """A request that waits longer for its first admission is shed; None sheds none."""


UNDISTURBED: Final = Circumstances()


@dataclass(frozen=True, slots=True)
class SettledPacer:
    """A fully fitted pacer: its model is the simulated device without noise.

    It allows what the engine's own pacer would with that model, in compiled code.
    """

    q_r: float
    min_prefill: int
    """Prefill tokens that every step has room for."""


class SimulatedEngine:
    """Serves `requests` on `hardware` under live limits; deterministic by seed."""

    def __init__(
        self,
        hardware: Hardware,
        requests: Requests,
        *,
        capacity: Capacity,
        limits: Limits,
        pacer: Pacer | SettledPacer | None,
        seed: int,
        circumstances: Circumstances = UNDISTURBED,
    ) -> None:
        """Start empty at second 0."""
        if capacity.max_token_budget >= len(hardware.dense_ms):
            raise ValueError(
                f"max_token_budget must be below {len(hardware.dense_ms)}, the step table's end, "
                f"got {capacity.max_token_budget}"
            )
        self.hardware = hardware
        self.requests = requests
        self.capacity = capacity
        self.pacer = None if isinstance(pacer, SettledPacer) else pacer
        self._seed = seed
        self._arrays: EngineArrays = _empty(hardware, requests, seed, circumstances.disturbances)
        self._num_offered = len(requests)
        self._totals = self._arrays.totals[0]
        self._totals["collapse_s"] = circumstances.collapse_at_s
        self._totals["shed_s"] = (circumstances.shed_ttft_ms or math.inf) / 1e3
        self._totals["is_patient"] = requests.patience_s is None
        self._totals["max_model_len"] = capacity.max_model_len
        self._totals["block_size"] = capacity.block_size
        for name in ("free_blocks", "num_blocks"):
            self._totals[name] = capacity.num_blocks
        self._is_settled = isinstance(pacer, SettledPacer)
        if isinstance(pacer, SettledPacer):
            self._totals["q_r"], self._totals["min_prefill"] = pacer.q_r, pacer.min_prefill
        self.limits = limits

    # --- limits and time -----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start: the end of the last step, or of the idle time after it."""
        return float(self._totals["now"])

    @property
    def limits(self) -> Limits:
        """What bounds the next step, within capacity."""
        return self._limits

    @limits.setter
    def limits(self, wanted: Limits) -> None:
        self._limits, _ = clamp(wanted, self.capacity)
        for name in ("max_batch_size", "token_budget"):
            self._totals[name] = getattr(self._limits, name)
        target_ms = self._limits.step_target_ms
        self._totals["target_ms"] = math.nan if target_ms is None else target_ms
        self._totals["pace_s"] = (self._limits.pace_tpot_ms or 0.0) / 1e3
        self._arrays.lanes["share"] = (self._limits.interactive_share, self._limits.batch_share)

    @property
    def epoch(self) -> int:
        """The epoch of the limits, recorded with every step and request."""
        return int(self._totals["epoch"])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._totals["epoch"] = epoch

    def run_until(self, t_s: float) -> None:
        """Step until the clock is at `t_s` or later: a step that has begun is finished."""
        advance = self._run_paced if self.pacer is not None else self._run
        while (status := advance(t_s)) == steps.FULL:
            self._grow()
        if status == steps.STUCK:
            raise RuntimeError(f"no step can run at {self.now} s, though requests wait")

    def offer(self, requests: Requests) -> None:
        """Let more requests come, none of them before those that come already."""
        self._totals["is_patient"] &= requests.patience_s is None
        self._add_rows(jobs_of(requests))
        self._num_offered += len(requests)

    def offer_one(self, arrival_s: float, *, prompt: int, output: int, cached: int = 0) -> None:
        """Let one more interactive request come, as `offer` does without copying all.

        Room is made for many at a time: rows in which nobody has come yet, and which never arrive.
        """
        number = self._num_offered
        if prompt < 1 or output < 1 or not 0 <= cached < prompt:
            raise ValueError(
                f"prompt and output must be at least 1 and cached less than prompt, "
                f"got {prompt}, {output} and {cached}"
            )
        if number > 0 and arrival_s < self._arrays.jobs["arrival_s"][number - 1]:
            raise ValueError(f"{arrival_s} s is before the arrival of who came last")
        if number == len(self._arrays.jobs):
            self._add_rows(_nobody_yet(max(number, _FEWEST_ROWS)))
        job = self._arrays.jobs[number]
        job["arrival_s"] = job["turn_s"] = arrival_s
        job["prompt"], job["output"], job["cached"] = prompt, output, cached
        self._num_offered += 1

    def _add_rows(self, jobs: Records) -> None:
        """Put jobs behind those that were offered."""
        arrays, count = self._arrays, len(jobs)
        lanes, room = np.zeros((2, count), np.int64), np.zeros(count, np.int64)
        self._arrays = arrays._replace(
            jobs=np.concatenate([arrays.jobs[: self._num_offered], jobs]),
            queue=np.concatenate([arrays.queue, lanes], axis=1),
            stack=np.concatenate([arrays.stack, lanes], axis=1),
            running=np.concatenate([arrays.running, room]),
            granted=np.concatenate([arrays.granted, room]),
            ended=np.concatenate([arrays.ended, room]),
        )

    def _run(self, until: float) -> int:
        run = steps.run_settled if self._is_settled else steps.run
        return run(self._arrays, until)

    def _run_paced(self, until: float) -> int:
        assert self.pacer is not None  # noqa: S101 - its only caller looked
        arrays, totals, pacer, limits = self._arrays, self._totals, self.pacer, self._limits
        status = steps.begin(arrays, until)
        while status == steps.READY:
            shape = StepShape(
                totals["decode"].item(),
                totals["context"].item(),
                totals["wanted"].item(),
                arrays.ahead[: totals["prompts"]].tolist(),
                None if math.isnan(slack_ms := totals["slack_ms"].item()) else slack_ms,
            )
            status = steps.execute(arrays, pacer.token_total(shape, limits))
            if status == steps.READY:
                self._tell(pacer)
                status = steps.begin(arrays, until)
        return status

    def _tell(self, pacer: Pacer) -> None:
        place = int(self._totals["steps"]) - 1
        step = StepFields(*self._arrays.steps[place].item())
        record = _record(step)
        self._arrays.steps["predicted_ms"][place] = pacer.predict_ms(record)
        pacer.observe(record, at=step.at, clean=step.clean)

    def _grow(self) -> None:
        """Make room for as many steps again where none is left, else for gaps of a later time."""
        old = self._arrays
        if int(self._totals["steps"]) == len(old.steps):
            grown = np.zeros(2 * len(old.steps), STEP)
            grown[: len(old.steps)] = old.steps
            noise = noise_factors(self.hardware.noise, self._seed, len(grown))
            self._arrays = old._replace(steps=grown, noise=noise)
        else:
            slices = len(old.gaps) + int(self.now / SLICE_S) + 1 + GAP_SLICES_AHEAD
            gaps = np.zeros((min(slices, MOST_SLICES), NUM_BINS), np.int64)
            gaps[: len(old.gaps)] = old.gaps
            self._arrays = old._replace(gaps=gaps)

    # --- the engine now ------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return int(self._totals["running"])

    @property
    def waiting(self) -> int:
        """Requests that have arrived and hold none."""
        lanes = self._arrays.lanes
        return int(np.sum(lanes["tail"] - lanes["head"] + lanes["stacked"]))

    @property
    def waiting_tokens(self) -> int:
        """Tokens yet to be prefilled of waiting and running requests; hits not deducted."""
        jobs = self._arrays.jobs[self._arrays.running[: self.running]]
        begun = jobs[jobs["state"] == PREFILL]
        left = begun["prompt"] + begun["tokens"] - begun["computed"]
        return int(self._totals["queued_tokens"] + np.sum(left))

    @property
    def oldest_waiting_s(self) -> float:
        """How long the request that came first of those that wait has waited; 0 without any."""
        arrays = self._arrays
        oldest = self.now
        for number, lane in enumerate(arrays.lanes):
            stacked = arrays.stack[number, : lane["stacked"]]
            queued = arrays.queue[number, lane["head"] : lane["tail"]]
            for waiting in (stacked, queued):
                oldest = min([oldest, *arrays.jobs["arrival_s"][waiting].tolist()])
        return self.now - oldest

    @property
    def running_output_tokens(self) -> list[int]:
        """Tokens given so far, of each running request in its order of admission."""
        running = self._arrays.running[: self.running]
        return [int(tokens) for tokens in self._arrays.jobs["tokens"][running]]

    @property
    def totals(self) -> Records:
        """Counters since the start, field by field (`state.TOTALS`); not to be written."""
        return np.asarray(self._arrays.totals)

    # --- what has happened ---------------------------------------------------------------------

    @property
    def jobs(self) -> Records:
        """Every request, arrived or not, field by field (`state.JOB`); not to be written."""
        return np.asarray(self._arrays.jobs[: self._num_offered])

    @property
    def ended(self) -> Whole:
        """Requests in the order in which they ended."""
        return self._arrays.ended[: int(self._totals["ended"])]

    @property
    def steps(self) -> Records:
        """Every step, field by field (`state.STEP`)."""
        return np.asarray(self._arrays.steps[: int(self._totals["steps"])])

    @property
    def gap_counts(self) -> Whole:
        """Inter-token gaps by 5-second slice and logarithmic bin (`gaps`) [slices, NUM_BINS]."""
        return self._arrays.gaps[: int(self.now / SLICE_S) + 1]

    @property
    def outcome(self) -> npt.NDArray[np.int8]:
        """Per request: 0 unfinished, 1 ok, 2 shed, 3 failed."""
        return np.asarray(self.jobs["outcome"], np.int8)

    @property
    def ttft_ms(self) -> Real:
        """Per request: from arrival to the first token; nan where none came."""
        return np.asarray((self.jobs["first_s"] - self.jobs["arrival_s"]) * 1e3, np.float64)

    @property
    def tpot_ms(self) -> Real:
        """Per finished request: mean time of the tokens after the first; nan where none."""
        jobs = self.jobs
        has_gaps = (jobs["outcome"] == OK) & (jobs["tokens"] > 1)
        spans_ms = (jobs["last_s"] - jobs["first_s"]) * 1e3
        means = spans_ms / np.maximum(jobs["tokens"] - 1, 1)
        return np.asarray(np.where(has_gaps, means, np.nan), np.float64)

    @property
    def itl_max_ms(self) -> Real:
        """Per request: its longest gap so far; nan where it had none."""
        jobs = self.jobs
        return np.asarray(np.where(jobs["tokens"] > 1, jobs["itl_max_ms"], np.nan), np.float64)

    @property
    def finished_s(self) -> Real:
        """Per request: when it ended, whatever the outcome; nan where it has not."""
        return np.asarray(self.jobs["finished_s"], np.float64)


def _nobody_yet(count: int) -> Records:
    none = np.zeros(count, np.int64)
    never_s = np.full(count, np.finfo(np.float64).max)
    return jobs_of(Requests(never_s, none + 1, none + 1, none, np.zeros(count, np.int8)))


def _record(step: StepFields) -> StepRecord:
    return StepRecord(**{name: getattr(step, name) for name in _RECORDED})


def _empty(
    hardware: Hardware,
    requests: Requests,
    seed: int,
    disturbances: Sequence[Disturbance],
) -> EngineArrays:
    count = len(requests)
    num_steps = min(_MOST_FIRST_STEPS, 64 + 2 * int(requests.output.sum()))
    factors = [astuple(disturbance) for disturbance in disturbances]
    return EngineArrays(
        jobs=jobs_of(requests),
        steps=np.zeros(num_steps, STEP),
        lanes=np.zeros(2, LANE),
        totals=np.zeros(1, TOTALS),
        queue=np.zeros((2, count), np.int64),
        stack=np.zeros((2, count), np.int64),
        running=np.zeros(count + 1, np.int64),
        granted=np.zeros(count + 1, np.int64),
        ahead=np.zeros((MOST_PROMPTS, 2), np.int64),
        ended=np.zeros(count, np.int64),
        gaps=np.zeros((GAP_SLICES_AHEAD, NUM_BINS), np.int64),
        dense_ms=hardware.dense_ms,
        costs=np.array(astuple(hardware.costs), np.float64),
        noise=noise_factors(hardware.noise, seed, num_steps),
        disturbances=np.array(factors, np.float64).reshape(-1, 4),
    )
