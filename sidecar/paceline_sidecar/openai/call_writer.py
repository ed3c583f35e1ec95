"""Tool calls in the words of the API: from what a model writes to `tool_calls`."""

import json
import random
import string
from typing import Any, Literal, Protocol

import msgspec

from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.text.tool_calls import CallReader, ParsedCall, ToolStyle, reader_of

# Templates of Mistral accept no other length.
_ID_CHARACTERS = 9
_ids = random.SystemRandom()


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call is of, and its arguments or a piece of them."""

    arguments: str
    name: str | None = None


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call, or a piece of one; `index` tells them apart."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Written(msgspec.Struct, frozen=True):
    """What one piece of text gave."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class CallWriter(Protocol):
    """Turns one choice's text into content and calls."""

    def write(self, text: str, *, ended: bool) -> Written:
        """Take the next piece of text."""
        ...


def writer_of(asked: ChatRequest, style: ToolStyle | None) -> CallWriter | None:
    """A writer for one choice; None where nothing can be called."""
    if not asked.offered:
        return None
    if asked.named is not None:
        return NamedWriter(asked.named)
    only_one = asked.parallel_tool_calls is False
    if asked.must_call:
        return ForcedWriter()
    if style is None or asked.structure is not None:
        return None
    return ChosenWriter(reader_of(style, asked.offered), only_one=only_one)


class NamedWriter:
    """All text is the arguments of one function, passed on as it comes."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def write(self, text: str, *, ended: bool) -> Written:
        """Pass it on; the first piece says whose it is."""
        del ended
        name, self._name = self._name, None
        if name is not None:
            return Written(calls=(_begin(0, ParsedCall(name, text)),))
        if not text:
            return Written()
        return Written(calls=(CallDelta(0, FunctionDelta(text)),))


class ForcedWriter:
    """All text is a list of calls, each passed on when it is whole."""

    def __init__(self) -> None:
        self._text = ""
        self._num_calls = 0

    def write(self, text: str, *, ended: bool) -> Written:
        """Take what has become whole; what was cut at the end is no call."""
        del ended
        self._text = (self._text + text).lstrip(" \n\t[,")
        calls: list[CallDelta] = []
        # Nothing becomes whole without a brace: a long text is not read again for every token.
        while "}" in text and self._text.startswith("{"):
            value, end = _leading_object(self._text)
            if value is None:
                break
            arguments = json.dumps(value["parameters"], ensure_ascii=False)
            calls.append(_begin(self._num_calls, ParsedCall(value["name"], arguments)))
            self._num_calls += 1
            self._text = self._text[end:].lstrip(" \n\t,")
        return Written(calls=tuple(calls))


class ChosenWriter:
    """The model speaks or calls, in its own way."""

    def __init__(self, reader: CallReader, *, only_one: bool) -> None:
        self._reader = reader
        self._only_one = only_one
        self._num_calls = 0

    def write(self, text: str, *, ended: bool) -> Written:
        """Pass on what is said, and calls when they are whole."""
        content = ""
        calls: list[ParsedCall] = []
        for read in (self._reader.push(text), *([self._reader.finish()] if ended else [])):
            content += read.said
            calls += read.calls
        if self._only_one:
            calls = calls[: 1 - self._num_calls]
        first = self._num_calls
        self._num_calls += len(calls)
        written = (_begin(first + place, call) for place, call in enumerate(calls))
        return Written(content, tuple(written))


def _begin(index: int, call: ParsedCall) -> CallDelta:
    id_ = "".join(_ids.choices(string.ascii_letters + string.digits, k=_ID_CHARACTERS))
    return CallDelta(index, FunctionDelta(call.arguments, call.name), id_, "function")


def _leading_object(text: str) -> tuple[dict[str, Any] | None, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None, 0  # not whole yet
    return value, end
