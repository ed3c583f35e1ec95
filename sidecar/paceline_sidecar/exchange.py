"""One HTTP request while it runs: its choices' outputs are asked for, or passed on as they come.

Of several choices of one prompt the first goes ahead: when its first token has come the prompt's
keys and values lie in the prefix cache, and the others find them there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from paceline_sidecar.admission.tickets import Ticket
from paceline_sidecar.backend import Arrival, Backend
from paceline_sidecar.errors import (
    ClientLeft,
    EngineFault,
    InvalidRequest,
    Refused,
    SidecarError,
    TimedOut,
    Unavailable,
)
from paceline_sidecar.generation import Delta, Generation
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ledger import AbortCause, Ledger
from paceline_sidecar.tracing.trace import Trace
from paceline_wire import Output


class Reader(Protocol):
    """Takes what comes as it comes, between the engine's message and the next one: keep it cheap.

    A task that is woken for each piece of a stream costs more than the piece.
    """

    def take(self, index: int, delta: Delta) -> None:
        """Take the next piece of one choice."""
        ...

    def fail(self, error: Exception) -> None:
        """End with an error; called once, and nothing after it."""
        ...


class _Deaf:
    """A reader that drops everything, used once the exchange has ended."""

    def take(self, index: int, delta: Delta) -> None:
        """Drop it."""

    def fail(self, error: Exception) -> None:
        """Drop it."""


_DEAF = _Deaf()


@dataclass(slots=True)
class _Choice:
    """One choice: what it gives, its place in the queue, and how far it is."""

    generation: Generation
    ticket: Ticket
    is_ahead: bool
    """It has siblings, which wait for its first token."""
    is_silent: bool = True
    """It has no token yet."""
    is_running: bool = True
    is_in_engine: bool = False


class Exchange:
    """Runs the choices of one request: call `start`, and use it as a context manager.

    It is read with `next`, by a task that waits, or from `pass_to` on by a `Reader`.
    """

    def __init__(
        self,
        generations: list[Generation],
        tickets: list[Ticket],
        *,
        backend: Backend,
        ledger: Ledger,
        clock: Callable[[], float],
        on_close: Callable[["Exchange"], None],
        trace: Trace | None = None,
    ) -> None:
        self.generations = generations
        self._backend = backend
        self._ledger = ledger
        self._clock = clock
        self._on_close = on_close
        self._trace = trace
        self._arrivals: list[tuple[int, Arrival | SidecarError]] = []
        self._waiting: asyncio.Future[None] | None = None
        self._reader: Reader | None = None
        self._choices = [
            _Choice(each, ticket, each.shape.index == 0 and each.shape.num_choices > 1)
            for each, ticket in zip(generations, tickets, strict=True)
        ]
        self._num_running = len(generations)
        self._heard = False
        self._closed = False
        self.deadline: asyncio.TimerHandle | None = None
        """Ends it when it has lasted too long."""
        self.first_token: asyncio.TimerHandle | None = None
        """Ends it when nothing has come for too long."""

    @property
    def heard(self) -> bool:
        """Whether any token has come."""
        return self._heard

    def start(self) -> None:
        """Hand the first choice of every prompt to the engine, each when its turn comes."""
        for index, generation in enumerate(self.generations):
            if generation.shape.index == 0:
                self._submit(index)

    def fail(self, error: SidecarError) -> None:
        """End it with `error`, after what has already come."""
        self._arrive(0, error)

    @property
    def is_complete(self) -> bool:
        """Whether every choice is finished."""
        return not self._num_running

    async def next(self) -> tuple[int, Delta] | None:
        """The next piece and the index of its choice; None when every choice is finished."""
        while self._num_running:
            while not self._arrivals:
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
            index, arrival = self._arrivals.pop(0)
            if isinstance(arrival, SidecarError):
                raise arrival
            if self._choices[index].is_running:
                return index, self._read(index, arrival)
        return None

    def pass_to(self, reader: Reader) -> None:
        """Pass on what has come and what comes from now on."""
        self._reader = reader
        while self._arrivals:
            self._arrive(*self._arrivals.pop(0))

    def _arrive(self, index: int, arrival: Arrival | SidecarError) -> None:
        """Pass an arrival on, or keep it until it is asked for."""
        if self._reader is None:
            self._arrivals.append((index, arrival))
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)
        elif isinstance(arrival, SidecarError):
            self._give_up(arrival)
        elif self._choices[index].is_running:
            try:
                self._reader.take(index, self._read(index, arrival))
            except Exception as error:  # noqa: BLE001 - ours too: the reader's task ends with it
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Tell the reader of an error, and of nothing after it."""
        reader, self._reader = self._reader, _DEAF
        if reader is not None:
            reader.fail(error)

    def _read(self, index: int, arrival: Arrival) -> Delta:
        """Return what an output adds to a choice that runs: no stop string has ended it."""
        delta = self.generations[index].feed(arrival.output, arrival.at)
        if delta.finish is not None:
            self._finish(index, cut=delta.cut)
        return delta

    def close(self, error: BaseException | None = None) -> None:
        """Record what became of it and free what it still holds in the engine."""
        if self._closed:
            return
        self._closed = True
        self._reader = _DEAF
        for timer in (self.deadline, self.first_token):
            if timer is not None:
                timer.cancel()
        outcome, epoch = outcome_of(error), self._epoch()
        was_offered = not isinstance(error, InvalidRequest)
        if self._trace is not None:
            self._trace.error = error
        for index, choice in enumerate(self._choices):
            choice.ticket.leave()
            if choice.is_running and was_offered:
                record = choice.generation.record(outcome, now=self._clock(), epoch=epoch)
                self._record(index, record)
        self._abort([each for each in self._choices if each.is_in_engine], _abort_cause(error))
        self._on_close(self)

    def __enter__(self) -> Self:
        """Enter; nothing is held that `start` did not take."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close with the outcome that the exception stands for."""
        self.close(error)

    def _submit(self, index: int) -> None:
        """Hand a choice to the engine when its turn comes."""
        self._choices[index].ticket.send(partial(self._hand_over, index))

    def _hand_over(self, index: int) -> None:
        choice = self._choices[index]
        try:
            self._backend.submit(choice.generation.submit, partial(self._deliver, index))
        except SidecarError as error:
            self.fail(error)
        else:
            choice.is_in_engine = True
            choice.generation.forget_prompt()
            if self._trace is not None:
                self._trace.hand_over(index, self._clock())

    def _submit_siblings(self, first: int) -> None:
        """Start the other choices of a prompt whose first one has got a token."""
        shape = self.generations[first].shape
        for index in range(first + 1, first + shape.num_choices):
            self._submit(index)

    def _deliver(self, index: int, arrival: Arrival | SidecarError) -> None:
        """Handle an output; called for every token, so rare work is behind a single check."""
        choice = self._choices[index]
        if not isinstance(arrival, Arrival):
            self._let_go(choice)
        else:
            if choice.is_silent:
                self._hear(index, arrival.output)
            if arrival.output.finish is not None:
                self._let_go(choice)
        self._arrive(index, arrival)

    def _let_go(self, choice: _Choice) -> None:
        """Note that the engine no longer has this choice."""
        choice.ticket.leave()
        choice.is_in_engine = False

    def _hear(self, index: int, output: Output) -> None:
        """Take in the first word of a choice: it waits no more."""
        choice = self._choices[index]
        choice.ticket.start()
        if not output.token_ids:
            return
        self._heard = True
        choice.is_silent = False
        if self.first_token is not None:
            self.first_token.cancel()
            self.first_token = None
        if choice.is_ahead:
            self._submit_siblings(index)

    def _finish(self, index: int, *, cut: bool) -> None:
        choice = self._choices[index]
        choice.is_running = False
        self._num_running -= 1
        longest = self._longest_choice(index)
        record = choice.generation.record(
            "ok", now=self._clock(), epoch=self._epoch(), longest_choice=longest
        )
        self._record(index, record)
        choice.ticket.leave()
        if cut and choice.is_in_engine:
            self._abort([choice], "stop_string")

    def _record(self, index: int, record: FinishedRequest) -> None:
        self._ledger.ended(record)
        if self._trace is not None:
            self._trace.add(index, record)

    def _longest_choice(self, index: int) -> int | None:
        """Return the output tokens of a prompt's longest choice; None until all have ended."""
        shape = self.generations[index].shape
        first = index - shape.index
        choices = self._choices[first : first + shape.num_choices]
        if any(each.is_running for each in choices):
            return None
        return max(each.generation.output_tokens for each in choices)

    def _abort(self, choices: list[_Choice], cause: AbortCause | None) -> None:
        if not choices:
            return
        for choice in choices:
            choice.is_in_engine = False
        self._backend.abort([choice.generation.submit.id for choice in choices])
        if cause is not None:
            self._ledger.aborts[cause] += len(choices)

    def _epoch(self) -> int:
        limits = self._backend.view.limits
        return 0 if limits is None else limits.epoch


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a request that ended with `error` is counted."""
    match error:
        case None:
            return "ok"
        case Refused():
            return "shed" if error.shed else "refused"
        case TimedOut():
            return "timeout"
        case ClientLeft() | asyncio.CancelledError() | GeneratorExit():
            return "cancelled"
        case Unavailable(reason="draining"):
            return "refused"
        case _:
            return "failed"


def _abort_cause(error: BaseException | None) -> AbortCause | None:
    match error:
        case Refused():
            return "shed"
        case TimedOut():
            return "deadline"
        case Unavailable(reason="draining"):
            return "drain"
        case ClientLeft() | asyncio.CancelledError() | GeneratorExit():
            return "disconnect"
        case EngineFault() | InvalidRequest() | Unavailable():
            return None  # the engine has already let go of it
        case _:
            return "disconnect"
