"""Steps, one after the other: chosen, launched, settled, recorded.

Where steps overlap, a step is chosen and launched while the one before is on its way, and only then
are that one's tokens waited for: the device never waits for the host. Steps are launched, run and
settled in one order, that of the device's stream, so at most one is behind another. On this rest:

* A request that ends by a token nobody could foresee (a stop, an abort) has one row too many in the
  step behind; its result is thrown away, and its blocks are free at once. The row still writes into
  them, but whatever uses them next is launched later, and so runs later.
* What would move blocks of a request in flight (preemption, host memory), or needs its token on the
  host (grammars, drafts), waits: then the step in flight is settled first,
  as if steps did not overlap (`Scheduler.must_settle`).

Without a launcher every step is settled before the next is chosen.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from paceline_engine.core.batch import Batch
from paceline_engine.core.flight import Flight, Launcher, OnDemand, Runner
from paceline_engine.core.request import Request, State
from paceline_engine.engine import outputs
from paceline_engine.engine.stats import StepLog, Totals, Work, work_of
from paceline_engine.errors import RequestError
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.scheduling import Plan, Scheduler
from paceline_engine.scheduling.watchdog import AdmissionWatchdog
from paceline_wire import Output, StepRecord
from paceline_wire.limits import Limits

_log = logging.getLogger(__name__)

_WARM_UP_STEPS = 3
"""First steps pay for allocations and caches that no later step pays for."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: Plan
    flight: Flight
    limits: Limits
    """Those it was chosen by."""
    epoch: int
    """That of `limits`."""
    work: Work
    predicted_ms: float
    started: float
    """When it began to be chosen."""
    launched: float
    """When its copies, or its launch where it has none, began."""


class Steps:
    """Runs what the scheduler chooses, and keeps the record of it."""

    def __init__(
        self,
        scheduler: Scheduler,
        pacer: Pacer,
        runner: Runner,
        *,
        launcher: Launcher | None,
        swapper: Swapper | None,
        clock: Callable[[], float],
    ) -> None:
        self.log = StepLog()
        self.totals = Totals()
        self.watchdog = AdmissionWatchdog()
        self._scheduler = scheduler
        self._requests = scheduler.requests
        self._pacer = pacer
        self._launcher = launcher or OnDemand(runner)
        self._overlap = launcher is not None
        self._swapper = swapper
        self._clock = clock
        self.is_gathering = False
        """Nothing runs because the requests that wait are still too few for a batch."""
        self._in_flight: _InFlight | None = None
        self._ended = 0.0
        """When the last step was settled."""

    @property
    def is_in_flight(self) -> bool:
        """A step is on its way whose tokens nobody has seen."""
        return self._in_flight is not None

    @property
    def next_seq(self) -> int:
        """Number of the first step that is not chosen yet."""
        return self.totals.steps + self.is_in_flight

    def step(self, limits: Limits, now: float, *, epoch: int) -> list[Output]:
        """Choose and launch a step, if there is anything to run, and settle the one before.

        `epoch` is that of the limits, for the record of the step.
        """
        given: list[Output] = []
        if self._in_flight is not None and self._scheduler.must_settle(limits):
            self.totals.overlap_fallbacks += 1
            given += self.settle()
            now = self._clock()
        plan = self._scheduler.schedule(limits, now)
        self.is_gathering = plan.is_gathering
        before, self._in_flight = self._in_flight, None
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

    def settle(self) -> list[Output]:
        """Wait for the step in flight, if there is one, and take it in."""
        step, self._in_flight = self._in_flight, None
        return [] if step is None else self._settle(step)

    def _launch(self, plan: Plan, limits: Limits, started: float, epoch: int) -> list[Output]:
        work = work_of(plan.batch, plan.context)
        predicted_ms = self._pacer.predict_ms(
            decode=work.decode,
            prefill=work.prefill,
            context=work.context,
            attention=work.attention,
        )
        launched = self._clock()
        if plan.copies and self._swapper is not None:
            self._swapper.run(plan.copies)
        try:
            flight = self._launcher.launch(plan.batch)
        except RequestError as error:
            return self._fail(error, plan.batch)
        self._requests.launched(plan.batch)
        self._in_flight = _InFlight(
            plan, flight, limits, epoch, work, predicted_ms, started, launched
        )
        return []

    def _settle(self, step: _InFlight) -> list[Output]:
        waited = self._clock()
        try:
            tokens = step.flight.tokens()
        except RequestError as error:
            self._take_back(step)
            return self._fail(error, step.plan.batch)
        run_ended = self._clock()
        sampled = self._scheduler.settle(step.plan.batch, tokens, run_ended)
        given = [outputs.newest(request) for request in sampled]
        run_s = run_ended - (waited if self._overlap else step.launched)
        self._record(step, sampled, run_s)
        return given

    def _record(self, step: _InFlight, sampled: list[Request], run_s: float) -> None:
        plan, limits, work, requests = step.plan, step.limits, step.work, self._requests
        ended = self._clock()
        # Behind another step its time begins when that one was settled.
        # Guesses have a price of their own: the step model is of the step that verifies them.
        wall_ms = (ended - max(step.started, self._ended)) * 1e3 - plan.draft_ms
        record = StepRecord(
            seq=self.totals.steps,
            at=ended,
            wall_ms=wall_ms,
            host_ms=wall_ms - run_s * 1e3,
            decode=work.decode,
            prefill=work.prefill,
            context=work.context,
            attention=work.attention,
            running=requests.num_running,
            waiting=requests.num_waiting,
            waiting_tokens=requests.num_waiting_tokens,
            kv_used=requests.blocks.pool.num_used,
            preemptions=plan.preemptions,
            epoch=step.epoch,
            token_budget=limits.token_budget,
            paced_tokens=plan.token_total,
            predicted_ms=step.predicted_ms,
            clean=self.totals.steps >= _WARM_UP_STEPS and not (plan.preemptions or plan.copies),
            draft_ms=plan.draft_ms,
        )
        self._ended = ended
        self.totals.count(plan.batch, sampled)
        self._pacer.observe(record)
        self.log.append(record)
        self._watch_admission(plan, limits, ended)

    def _watch_admission(self, plan: Plan, limits: Limits, now: float) -> None:
        queue = self._scheduler.queue_after(plan.batch, limits)
        if self.watchdog.see(queue, now):
            _log.warning("admission is stuck: %s, %s", queue, limits)

    def _take_back(self, step: _InFlight) -> None:
        """Nothing of a broken step counts, nor of the one behind it, which built on its tokens."""
        behind, self._in_flight = self._in_flight, None
        for broken in (behind, step):
            if broken is not None:
                self._requests.withdraw(broken.plan.batch)

    def _fail(self, error: RequestError, batch: Batch) -> list[Output]:
        """End the request that broke a step. Nothing was settled, so the others just run again."""
        named = (piece.request for piece in batch.chunks if piece.request.id == error.request_id)
        request = next(named, None)
        if request is None:
            raise error  # a runner that names nobody has broken for all
        if request.state is State.FINISHED:
            return []  # it has ended while the step was on its way
        self._scheduler.finish(request, "error")
        return [outputs.failed(error)]
