"""From what a model writes to the content and the `tool_calls` of a response."""

import json
import random
import string
from typing import Any, Literal, Protocol

import msgspec

from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.text.tool_call_parser import ParsedCall, ToolCallParser, ToolStyle, parser_of

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


def writer_of(body: ChatRequest, style: ToolStyle | None) -> CallWriter | None:
    """Choose the writer for one choice; None where nothing can be called."""
    if not body.offered:
        return None
    if body.named is not None:
        return NamedWriter(body.named)
    only_one = body.parallel_tool_calls is False
    if body.must_call:
        return ForcedWriter()
    if style is None or body.structure is not None:
        return None
    return FreeWriter(parser_of(style, body.offered), only_one=only_one)


class NamedWriter:
    """All text is the arguments of one function, passed on as it comes."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Pass the text on; the first piece names the function."""
        del ended
        name, self._name = self._name, None
        if name is not None:
            return ContentAndCalls(calls=(_begin(0, ParsedCall(name, text)),))
        if not text:
            return ContentAndCalls()
        return ContentAndCalls(calls=(CallDelta(0, FunctionDelta(text)),))


class ForcedWriter:
    """All text is a list of calls, each passed on when it is complete."""

    def __init__(self) -> None:
        self._text = ""
        self._num_calls = 0

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Return the calls that are complete now; one cut off at the end is none."""
        del ended
        self._text = (self._text + text).lstrip(" \n\t[,")
        calls: list[CallDelta] = []
        # No call is complete without a brace: a long text is not parsed again for every token.
        while "}" in text and self._text.startswith("{"):
            value, end = _leading_object(self._text)
            if value is None:
                break
            arguments = json.dumps(value["parameters"], ensure_ascii=False)
            calls.append(_begin(self._num_calls, ParsedCall(value["name"], arguments)))
            self._num_calls += 1
            self._text = self._text[end:].lstrip(" \n\t,")
        return ContentAndCalls(calls=tuple(calls))


class FreeWriter:
    """The text holds calls in the model's own format, or none."""

    def __init__(self, parser: ToolCallParser, *, only_one: bool) -> None:
        self._parser = parser
        self._only_one = only_one
        self._num_calls = 0

    def write(self, text: str, *, ended: bool) -> ContentAndCalls:
        """Pass on content at once, and calls when they are complete."""
        content = ""
        calls: list[ParsedCall] = []
        for read in (self._parser.push(text), *([self._parser.finish()] if ended else [])):
            content += read.content
            calls += read.calls
        if self._only_one:
            calls = calls[: 1 - self._num_calls]
        first = self._num_calls
        self._num_calls += len(calls)
        written = (_begin(first + place, call) for place, call in enumerate(calls))
        return ContentAndCalls(content, tuple(written))


def _begin(index: int, call: ParsedCall) -> CallDelta:
    id_ = "".join(_ids.choices(string.ascii_letters + string.digits, k=_ID_CHARACTERS))
    return CallDelta(index, FunctionDelta(call.arguments, call.name), id_, "function")


def _leading_object(text: str) -> tuple[dict[str, Any] | None, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None, 0  # not whole yet
    return value, end
