"""What one request tells of itself while it runs; spans are made of it when it is over.

Nothing here imports OpenTelemetry, and nothing here happens for a token: the times are those that
the metrics measure anyway.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from paceline_sidecar.errors import Refused, Unavailable
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_wire.limits import Lane

MAX_CHOICES = 16
"""Of a request with more choices, the first so many have spans of their own."""


@dataclass(slots=True)
class SpanCounts:
    """Spans by what became of them; each number has one writer."""

    exported: int = 0
    failed: int = 0
    """The collector did not take them."""
    dropped: int = 0
    """Too many waited to be sent."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """What a request asks for, without what it says."""

    model: str
    lane: Lane
    num_choices: int
    max_tokens: int
    """0 asks for all that the context leaves."""
    temperature: float
    epoch: int
    """Of the limits when it came."""


@dataclass(frozen=True, slots=True)
class TracedChoice:
    """One choice that ended."""

    index: int
    handed_over_at: float | None
    """When the engine was given it; None where it never was."""
    record: FinishedRequest


@dataclass(slots=True)
class Trace:
    """One request. `finish` is called once, last."""

    name: str
    began_at: float
    header: str
    """`traceresponse`: which trace this is, for the client."""
    is_recorded: bool
    """Whether it is sampled; where not, it has nothing to keep."""
    send: Callable[["Trace", float], None]
    is_stream: bool = False
    request_id: str = ""
    batch_id: str = ""
    job: TracedJob | None = None
    choices: list[TracedChoice] = field(default_factory=list)
    status: int | None = None
    """Of the HTTP response."""
    answer_at: float | None = None
    """When the response began."""
    error: BaseException | None = None
    _handed_over: dict[int, float] = field(default_factory=dict)

    def hand_over(self, index: int, now: float) -> None:
        """Note that the engine has a choice."""
        self._handed_over[index] = now

    def add(self, index: int, record: FinishedRequest) -> None:
        """Note that a choice has ended."""
        self.choices.append(TracedChoice(index, self._handed_over.get(index), record))

    def finish(self, now: float) -> None:
        """Make spans of it."""
        self.send(self, now)


class Tracing(Protocol):
    """Begins traces. The module that does it imports OpenTelemetry, and is imported when asked."""

    @property
    def counts(self) -> SpanCounts:
        """What became of the spans."""
        ...

    def begin(self, name: str, headers: Mapping[str, str] | None, *, at: float) -> Trace:
        """Begin the trace of an HTTP request, or of a line of a batch (no headers)."""
        ...

    async def close(self) -> None:
        """Send what waits, as far as a second allows."""
        ...


def error_type(error: BaseException) -> str:
    """Return an error's name on a span: the reason of a refusal, else its class."""
    if isinstance(error, Refused | Unavailable):
        return error.reason
    return type(error).__name__
