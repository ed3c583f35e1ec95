"""From what a model writes to the content and the `tool_calls` of a response."""

import random
import string
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.text.call_reader import CallPiece
from paceline_sidecar.text.tool_call_parser import (
    ListParser,
    ToolCallParser,
    ToolStyle,
    parser_of,
)

# Templates of Mistral accept no other length.
_ID_CHARACTERS = 9
_ids = random.SystemRandom()


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A called function, and its arguments or a piece of them."""

    arguments: str
    name: str | None = None


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call or a piece of one; pieces of the same call have the same `index`."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class ContentAndCalls(msgspec.Struct, frozen=True):
    """The content and the calls in one piece of text, and the thought before them."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()
    reasoning: str = ""
    """What the model thought before it answered."""


class CallWriter(Protocol):
    """Turns one choice's text into content and calls."""

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Take the next piece of text."""
        ...


@dataclass(frozen=True, slots=True)
class CallRules:
    """A request's rules for calls: all that is needed to read its answer, without its messages."""

    offered: frozenset[str]
    """The functions that may be called."""
    named: str | None
    """The one function that must be called."""
    must_call: bool
    only_one: bool
    is_structured: bool
    """The output follows a grammar."""

    @classmethod
    def of(cls, body: ChatRequest) -> "CallRules":
        """Return a request's."""
        return cls(
            body.offered,
            body.named,
            body.must_call,
            body.parallel_tool_calls is False,
            body.structure is not None,
        )


def writer_of(rules: CallRules, style: ToolStyle | None) -> CallWriter | None:
    """Choose the writer for one choice; None where nothing can be called."""
    if not rules.offered:
        return None
    if rules.named is not None:
        return NamedWriter(rules.named)
    if rules.must_call:
        parser = ListParser(None, rules.offered, is_open=True)
        return ForcedWriter(parser, only_one=rules.only_one)
    if style is None or rules.is_structured:
        return None
    return FreeWriter(parser_of(style, rules.offered), only_one=rules.only_one)


class NamedWriter:
    """All text is the arguments of one function, passed on as it comes."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Pass the text on; the first piece names the function."""
        del ended
        name, self._name = self._name, None
        if name is None and not text:
            return ContentAndCalls()
        return ContentAndCalls(calls=(_delta(0, CallPiece(text, name)),))


class FreeWriter:
    """The text holds calls among content, or none."""

    def __init__(self, parser: ToolCallParser, *, only_one: bool) -> None:
        self._parser = parser
        self._only_one = only_one
        self._num_calls = 0

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Pass on content and calls as they come."""
        parts = (self._parser.push(text), *([self._parser.finish()] if ended else []))
        deltas: list[CallDelta] = []
        for piece in (piece for part in parts for piece in part.calls):
            self._num_calls += piece.name is not None
            if self._only_one and self._num_calls > 1:
                break
            deltas.append(_delta(self._num_calls - 1, piece))
        return ContentAndCalls("".join(part.content for part in parts), tuple(deltas))


class ForcedWriter(FreeWriter):
    """The text holds calls and nothing else: what is no call, as at a cut, is dropped."""

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Pass on calls as they come."""
        return ContentAndCalls(calls=super().write(text, ended=ended).calls)


def _delta(index: int, piece: CallPiece) -> CallDelta:
    function = FunctionDelta(piece.arguments, piece.name)
    if piece.name is None:
        return CallDelta(index, function)
    id_ = "".join(_ids.choices(string.ascii_letters + string.digits, k=_ID_CHARACTERS))
    return CallDelta(index, function, id_, "function")
