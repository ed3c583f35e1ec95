"""The step loop: schedule a step, launch it, settle it, record it.

With overlap, a step is scheduled and launched while the one before it runs; only then does the host
wait for the earlier one's tokens, so the device never waits for the host. Steps are launched, run
and settled in one order, that of the device's stream, so at most two are in flight. Therefore:

* A request that ends by a token nobody could foresee (a stop, an abort) has one row too many in the
  step behind; its result is thrown away, and its blocks are free at once. The row still writes into
  them, but whatever uses them next is launched later, and so runs later.
* What would move blocks of a request in flight (preemption, host memory), or needs its token on the
  host (grammars, drafts), waits: then the step in flight is settled first, as if steps did not
  overlap (`Scheduler.must_settle`).

Where steps do not overlap, every step is settled before the next is scheduled.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import astuple

from paceline_engine.core.batch import Batch, Flight, Runner, StepOutput
from paceline_engine.core.request import Request, State
from paceline_engine.errors import BadConstraint, RequestError
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.scheduling import Plan, Scheduler
from paceline_engine.scheduling.watchdog import AdmissionWatchdog
from paceline_wire import Output, StepFeatures, StepRecord
from paceline_wire.limits import Limits

_log = logging.getLogger(__name__)

_WARM_UP_STEPS = 3
"""First steps pay for allocations and caches that no later step pays for."""


@dataclass(slots=True)
class Counters:
    """Steps, tokens and fallbacks, counted since start."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    padding_tokens: int = 0
    """Tokens computed only to fill batches up."""
    batch_prompt_tokens: int = 0
    """The batch lane's part of `prompt_tokens`."""
    batch_output_tokens: int = 0
    """The batch lane's part of `output_tokens`."""
    overlap_fallbacks: int = 0
    """Steps that were scheduled only after the one before was settled, though steps overlap."""
    batch_lane_paused_steps: int = 0
    """Steps that the decodes of the batch lane left out."""

    def count(self, batch: Batch, sampled: list[Request]) -> None:
        """Add a step that has run."""
        prompts = batch.chunks[batch.num_decodes + batch.num_drafted :]
        chunks = [chunk for chunk in prompts if not chunk.is_padding]
        self.steps += 1
        self.batch_lane_paused_steps += batch.is_batch_paused
        self.padding_tokens += batch.num_padding
        self.prompt_tokens += sum(chunk.count for chunk in chunks)
        self.output_tokens += sum(request.num_newest for request in sampled)
        self.batch_prompt_tokens += sum(
            chunk.count for chunk in chunks if chunk.request.lane == "batch"
        )
        self.batch_output_tokens += sum(
            request.num_newest for request in sampled if request.lane == "batch"
        )


@dataclass(slots=True)
class StepLog:
    """Step records that no telemetry message has carried yet."""

    max_records: int = 20_000
    records: list[StepRecord] = field(default_factory=list)

    def append(self, record: StepRecord) -> None:
        """Keep a record; drop the oldest half when the log is full."""
        if len(self.records) >= self.max_records:
            del self.records[: self.max_records // 2]
        self.records.append(record)

    def take(self) -> list[StepRecord]:
        """Return the kept records and forget them."""
        taken, self.records = self.records, []
        return taken


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: Plan
    flight: Flight
    limits: Limits
    """The limits that it was scheduled by."""
    epoch: int
    """The epoch of `limits`."""
    features: StepFeatures
    predicted_ms: float
    started: float
    """When scheduling it began."""
    launched: float
    """When its copies began, or its launch where it has none."""


class Steps:
    """Runs what the scheduler plans, and keeps the records."""

    def __init__(
        self,
        scheduler: Scheduler,
        pacer: Pacer,
        runner: Runner,
        *,
        overlap: bool,
        swapper: Swapper | None,
        clock: Callable[[], float],
    ) -> None:
        """With `overlap` a step is scheduled and launched while the one before runs."""
        self.log = StepLog()
        self.counters = Counters()
        self.watchdog = AdmissionWatchdog()
        self._scheduler = scheduler
        self._requests = scheduler.requests
        self._pacer = pacer
        self._runner = runner
        self._overlap = overlap
        self._swapper = swapper
        self._clock = clock
        self.is_gathering = False
        """Nothing runs because the requests that wait are still too few for a batch."""
        self.predicted_ms = 0.0
        """How long the current call of `step` should take, as the step model predicts."""
        self._in_flight: _InFlight | None = None
        self._ended = 0.0
        """When the last step was settled."""

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is on its way whose tokens nobody has seen."""
        return self._in_flight is not None

    @property
    def next_seq(self) -> int:
        """Number of the first step that is not scheduled yet."""
        return self.counters.steps + self.is_in_flight

    def step(self, limits: Limits, now: float, *, epoch: int) -> list[Output]:
        """Schedule and launch a step, if there is anything to run, and settle the one before.

        `epoch` is that of the limits, for the record of the step.
        """
        given: list[Output] = []
        if self._in_flight is not None and self._must_settle(self._in_flight, limits):
            self.counters.overlap_fallbacks += 1
            given += self.settle()
            now = self._clock()
        plan = self._scheduler.schedule(limits, now)
        self.is_gathering = plan.is_gathering
        before, self._in_flight = self._in_flight, None
        self.predicted_ms = 0.0 if before is None else before.predicted_ms
        assert before is None or not plan.copies  # noqa: S101 - `must_settle` saw to it
        if plan.batch.chunks:
            given += self._launch(plan, limits, now, epoch)
        elif before is None and self._requests.num_waiting and not plan.is_gathering:
            waiting = self._requests.num_waiting
            raise RuntimeError(f"{waiting} requests wait, none runs and none was admitted")
        if before is not None:
            given += self._settle(before)
        if not self._overlap:
            given += self.settle()
        return given

    def _must_settle(self, step: _InFlight, limits: Limits) -> bool:
        # Only the host knows what follows a draft, even if its request has ended meanwhile.
        return step.plan.batch.num_drafted > 0 or self._scheduler.must_settle(limits)

    def settle(self) -> list[Output]:
        """Wait for the step in flight, if there is one, and settle it."""
        step, self._in_flight = self._in_flight, None
        return [] if step is None else self._settle(step)

    def _launch(self, plan: Plan, limits: Limits, started: float, epoch: int) -> list[Output]:
        features = plan.batch.features(plan.context)
        predicted_ms = self._pacer.predict_ms(features)
        self.predicted_ms += predicted_ms
        launched = self._clock()
        if plan.copies and self._swapper is not None:
            self._swapper.run(plan.copies)
        try:
            flight = self._runner.launch(plan.batch)
        except RequestError as error:
            return self._fail(error, plan.batch)
        self._requests.launched(plan.batch)
        self._in_flight = _InFlight(
            plan, flight, limits, epoch, features, predicted_ms, started, launched
        )
        return []

    def _settle(self, step: _InFlight) -> list[Output]:
        waited = self._clock()
        try:
            output = step.flight.result()
        except RequestError as error:
            self._take_back(step)
            return self._fail(error, step.plan.batch)
        run_ended = self._clock()
        _keep_prompt_logprobs(step.plan.batch, output)
        sampled = self._scheduler.settle(step.plan.batch, output.tokens, run_ended)
        for chunk in step.plan.batch.chunks if output.late else ():
            if chunk.request.id in output.late:
                self._requests.hold(chunk.request, output.late[chunk.request.id])
        given = [_newest(request, output) for request in sampled]
        run_s = run_ended - (waited if self._overlap else step.launched)
        self._record(step, sampled, run_s)
        return given

    def _record(self, step: _InFlight, sampled: list[Request], run_s: float) -> None:
        plan, limits, requests = step.plan, step.limits, self._requests
        decode, prefill, context, attention = astuple(step.features)
        ended = self._clock()
        # With overlap, a step's time begins when the step before it was settled.
        # Drafting has its own cost model: the step model predicts only the step that verifies.
        wall_ms = (ended - max(step.started, self._ended)) * 1e3 - plan.draft_ms
        record = StepRecord(
            seq=self.counters.steps,
            at=ended,
            wall_ms=wall_ms,
            host_ms=wall_ms - run_s * 1e3,
            decode=decode,
            prefill=prefill,
            context=context,
            attention=attention,
            running=requests.num_running,
            waiting=requests.num_waiting,
            waiting_tokens=requests.num_waiting_tokens,
            kv_used=requests.blocks.pool.num_used,
            preemptions=plan.preemptions,
            epoch=step.epoch,
            token_budget=limits.token_budget,
            paced_tokens=plan.token_total,
            predicted_ms=step.predicted_ms,
            clean=self.counters.steps >= _WARM_UP_STEPS and not (plan.preemptions or plan.copies),
            draft_ms=plan.draft_ms,
        )
        self._ended = ended
        self.counters.count(plan.batch, sampled)
        self._pacer.observe(record, at=ended, clean=record.clean)
        self.log.append(record)
        self._watch_admission(plan, limits, ended)

    def _watch_admission(self, plan: Plan, limits: Limits, now: float) -> None:
        queue = self._scheduler.queue_after(plan.batch, limits)
        if queue is None and not self.watchdog.num_stuck:
            return
        if self.watchdog.see(queue, now):
            _log.warning("admission is stuck: %s, %s", queue, limits)

    def _take_back(self, step: _InFlight) -> None:
        """Undo a broken step, and the one behind it, which built on its tokens."""
        behind, self._in_flight = self._in_flight, None
        for broken in (behind, step):
            if broken is not None:
                self._requests.withdraw(broken.plan.batch)

    def _fail(self, error: RequestError, batch: Batch) -> list[Output]:
        """End the request that broke a step. Nothing was settled, so the others just run again."""
        named = (chunk.request for chunk in batch.chunks if chunk.request.id == error.request_id)
        request = next(named, None)
        if request is None:
            raise error  # without a request to blame, every request is affected
        if request.state is State.FINISHED:
            return []  # it has ended while the step was in flight
        self._scheduler.finish(request, "error")
        is_invalid = isinstance(error, BadConstraint)
        return [Output(request.id, [], "error", error=error.message, is_invalid=is_invalid)]


def _keep_prompt_logprobs(batch: Batch, output: StepOutput) -> None:
    """Keep the logprobs of prompts, chunk by chunk, for the output of the first token."""
    if output.prompt_logprobs:
        for chunk in batch.chunks:
            chunk.request.prompt_logprobs += output.prompt_logprobs.get(chunk.request.id, ())


def _newest(request: Request, step: StepOutput) -> Output:
    """Make the output of what a step gave a request."""
    token_ids = request.token_ids[-request.num_newest :]
    is_first = request.num_output_tokens == request.num_newest
    if request.is_plain and not is_first:  # nearly every output of every step
        return Output(request.id, token_ids, request.finish)
    asked = step.logprobs.get(request.id)
    logprobs = [] if asked is None else [asked]
    if not is_first:
        return Output(request.id, token_ids, request.finish, logprobs=logprobs)
    return Output(
        request.id,
        token_ids,
        request.finish,
        cached_tokens=request.num_cached,
        scheduled_at=request.scheduled_at,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        embedding=step.embeddings.get(request.id, b""),
    )
