"""The outcome of each request, judged by the text that its prompt gave on the quiet service. Pure.

Mixed comes first: a stream that was cut must still be the beginning of the right text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PROMPTS: Final = (
    "The capital of France is",
    "One, two, three, four,",
    "Water boils at a temperature of",
    "Once upon a time there was a fox who",
    "The three primary colours are",
    "def fibonacci(n):",
    "Dear Sir or Madam, I am writing to",
    "The opposite of hot is",
)
CUT_WITHIN_S: Final = 30.0
"""A client that is told later than this that its pod was killed was left hanging: failed."""


class Outcome(StrEnum):
    """How a request is counted."""

    WHOLE = "whole"
    CUT = "cut by the kill of their own pod"
    FAILED = "failed"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The right answer to a prompt."""

    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One request as its client saw it, in seconds of the client's monotonic clock."""

    prompt: int
    began_at: float
    ended_at: float
    text: str = ""
    finish_reason: str = ""
    """Empty: the stream did not come to its end."""
    error: str = ""
    first_byte_at: float | None = None
    """When the status line of the answer that counts was there."""
    port: int | None = None
    """The client's end of the connection that the answer came over."""
    num_retries: int = 0


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of one of the service's containers."""

    at: float
    ports: frozenset[int]
    """The clients' ends of the connections that led to its pod."""

    def cut(self, stream: Stream) -> bool:
        """Whether the stream was under way from this pod, and over soon after the kill."""
        return (
            stream.port in self.ports
            and stream.first_byte_at is not None
            and stream.first_byte_at <= self.at <= stream.ended_at <= self.at + CUT_WITHIN_S
        )


def judge(stream: Stream, expected: Answer, kills: Sequence[Kill]) -> Outcome:
    """Count a request as exactly one thing."""
    if not expected.text.startswith(stream.text):
        return Outcome.MIXED
    if not stream.error and (stream.text, stream.finish_reason) == (
        expected.text,
        expected.finish_reason,
    ):
        return Outcome.WHOLE
    is_broken_off = bool(stream.error) or not stream.finish_reason
    if is_broken_off and any(kill.cut(stream) for kill in kills):
        return Outcome.CUT
    return Outcome.FAILED
