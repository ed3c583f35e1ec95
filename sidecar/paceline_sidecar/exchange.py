"""One HTTP request while it runs; its choices share one queue of outputs.

Of several choices of one prompt the first goes ahead: when its first token has come the prompt's
keys and values lie in the prefix cache, and the others find them there.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

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
from paceline_sidecar.metrics.finished_request import Outcome
from paceline_sidecar.metrics.ledger import AbortCause, Ledger


class Exchange:
    """Started with `start`, read with `next`, and left as a context manager, whatever happens."""

    def __init__(
        self,
        generations: list[Generation],
        tickets: list[Ticket],
        *,
        backend: Backend,
        ledger: Ledger,
        clock: Callable[[], float],
        on_close: Callable[["Exchange"], None],
    ) -> None:
        self.generations = generations
        self._tickets = tickets
        self._backend = backend
        self._ledger = ledger
        self._clock = clock
        self._on_close = on_close
        self._arrivals: asyncio.Queue[tuple[int, Arrival | SidecarError]] = asyncio.Queue()
        self._running = set(range(len(generations)))
        self._in_engine: set[str] = set()
        self._ahead = {
            index
            for index, generation in enumerate(generations)
            if generation.shape.index == 0 and generation.shape.num_choices > 1
        }
        """First choices without a token yet, whose siblings wait for it."""
        self._heard = False
        self._closed = False
        self.timers: dict[str, asyncio.TimerHandle] = {}
        """What may still end it from outside; cancelled when it closes."""

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
        self._arrivals.put_nowait((0, error))

    async def next(self) -> tuple[int, Delta] | None:
        """The next piece and the index of its choice; None when every choice is finished."""
        if not self._running:
            return None
        index, arrival = await self._arrivals.get()
        while index not in self._running and isinstance(arrival, Arrival):
            index, arrival = await self._arrivals.get()  # of a prompt that a stop string ended
        if not isinstance(arrival, Arrival):
            raise arrival
        generation = self.generations[index]
        delta = generation.feed(arrival.output, arrival.at)
        if delta.finish is not None:
            self._finish(index, cut=delta.cut)
        return index, delta

    def close(self, error: BaseException | None = None) -> None:
        """Record what became of it and free what it still holds in the engine."""
        if self._closed:
            return
        self._closed = True
        for timer in self.timers.values():
            timer.cancel()
        outcome, epoch = outcome_of(error), self._epoch()
        for ticket in self._tickets:
            ticket.leave()
        was_offered = not isinstance(error, InvalidRequest)
        for index in self._running if was_offered else ():
            record = self.generations[index].record(outcome, now=self._clock(), epoch=epoch)
            self._ledger.ended(record)
        if self._in_engine:
            self._abort(sorted(self._in_engine), _abort_cause(error))
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
        self._tickets[index].send(partial(self._hand_over, index))

    def _hand_over(self, index: int) -> None:
        submit = self.generations[index].submit
        try:
            self._backend.submit(submit, partial(self._deliver, index))
        except SidecarError as error:
            self.fail(error)
        else:
            self._in_engine.add(submit.id)

    def _submit_siblings(self, first: int) -> None:
        """Start the other choices of a prompt whose first one has got a token."""
        shape = self.generations[first].shape
        for index in range(first + 1, first + shape.num_choices):
            self._submit(index)

    def _deliver(self, index: int, arrival: Arrival | SidecarError) -> None:
        """Called by the backend: keep it cheap, the reader of the queue does the work."""
        if isinstance(arrival, Arrival):
            self._heard = self._heard or bool(arrival.output.token_ids)
            if arrival.output.token_ids and index in self._ahead:
                self._ahead.discard(index)
                self._submit_siblings(index)
            self._tickets[index].start()
            if arrival.output.finish is not None:
                self._tickets[index].leave()
                self._in_engine.discard(arrival.output.id)
        else:
            self._tickets[index].leave()
            self._in_engine.discard(self.generations[index].submit.id)
        self._arrivals.put_nowait((index, arrival))

    def _finish(self, index: int, *, cut: bool) -> None:
        generation = self.generations[index]
        self._running.remove(index)
        record = generation.record("ok", now=self._clock(), epoch=self._epoch())
        self._ledger.ended(record)
        self._tickets[index].leave()
        if cut and generation.submit.id in self._in_engine:
            self._abort([generation.submit.id], "stop_string")

    def _abort(self, ids: list[str], cause: AbortCause | None) -> None:
        self._in_engine.difference_update(ids)
        self._backend.abort(ids)
        if cause is not None:
            self._ledger.aborts[cause] += len(ids)

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
