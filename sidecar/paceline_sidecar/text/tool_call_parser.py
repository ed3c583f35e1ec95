"""Split what a model writes into text and tool calls.

Each family writes calls in its own format, which its chat template shows:

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}]             Mistral
              [TOOL_CALLS]name[ARGS]{...}                                 Mistral, newer
    llama     {"name": ..., "parameters": {...}}, and nothing else        Llama 3

A parser takes text piece by piece, and passes content on at once. A call has begun with its name,
if that was offered, and the brace that opens its arguments: from there on these are passed on as
they come. Calls in another form (the arguments before the name, or in a string) are passed on when
they are complete. What looks like a call and is none, or calls what was not offered, is content.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline_sidecar.text.call_reader import CallPiece, CallReader
from paceline_sidecar.text.whole_calls import LLAMA_TAG, MISTRAL_TAG, call_in, calls_in

ToolStyle = Literal["hermes", "mistral", "llama"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BETWEEN_CALLS = re.compile(r"(?:\[TOOL_CALLS\]|<\|python_tag\|>|[\s,;\[\]])*")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The content and the pieces of calls in one piece of text."""

    content: str = ""
    calls: tuple[CallPiece, ...] = ()


class ToolCallParser(Protocol):
    """Parses one choice."""

    def push(self, text: str) -> ParsedText:
        """Take the next piece of text."""
        ...

    def finish(self) -> ParsedText:
        """Take the end of the text: what was held back."""
        ...


def style_of(template: str) -> ToolStyle:
    """Return how a model writes calls, from its chat template."""
    if _OPEN in template:
        return "hermes"
    if MISTRAL_TAG in template:
        return "mistral"
    return "llama"


def parser_of(style: ToolStyle, names: Collection[str]) -> ToolCallParser:
    """Choose the parser for one choice; `names` are the functions that were offered."""
    match style:
        case "hermes":
            return HermesParser(names)
        case "mistral":
            return ListParser(MISTRAL_TAG, names)
        case "llama":
            return ListParser(None, names)


class HermesParser:
    """Calls stand between tags, anywhere in the text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._call: CallReader | None = None
        """Of the tag that is open."""

    def push(self, text: str) -> ParsedText:
        """Pass on what is outside of tags, and calls as they come."""
        self._held += text
        content, calls = "", list[CallPiece]()
        while True:
            if self._call is not None:
                piece, self._held = self._call.push(self._held)
                calls += [] if piece is None else [piece]
            before, tag, after = self._held.partition(_OPEN if self._call is None else _CLOSE)
            if not tag:
                break
            self._held = after
            if self._call is None:
                content += before
                self._call = CallReader(self._names)
                continue
            if not self._call.has_begun:
                call = call_in(before, self._names)
                content += f"{_OPEN}{before}{_CLOSE}" if call is None else ""
                calls += [] if call is None else [call]
            self._call = None
        if self._call is None:
            safe = len(self._held) - overlap(self._held, _OPEN)
            content += self._held[:safe]
            self._held = self._held[safe:]
        # Space around calls belongs to their format.
        is_space = not content.strip() and (calls or self._call is not None)
        return ParsedText("" if is_space else content, tuple(calls))

    def finish(self) -> ParsedText:
        """Count a call whose tag was not closed, if it is complete."""
        held, self._held = self._held, ""
        if self._call is None:
            return ParsedText(held)
        if self._call.has_begun:
            return ParsedText(held if held.strip() else "")
        call = call_in(held, self._names)
        return ParsedText(_OPEN + held) if call is None else ParsedText(calls=(call,))


class ListParser:
    """Takes all from the first sign of a call on as calls."""

    def __init__(self, tag: str | None, names: Collection[str], *, is_open: bool = False) -> None:
        """Begin before the first sign, or with `is_open` after it."""
        self._tag = tag
        self._names = names
        self._held = ""
        self._state: Literal["undecided", "content", "calling"]
        self._state = "calling" if is_open else "undecided"
        self._call = self._next_call()
        self._has_called = False

    def push(self, text: str) -> ParsedText:
        """Pass content on until a call begins, and calls as they come."""
        self._held += text
        before = ""
        if self._state != "calling":
            before = self._before_tag() if self._tag is not None else self._before_object()
        calls = self._calls() if self._state == "calling" else []
        return ParsedText(before, tuple(calls))

    def finish(self) -> ParsedText:
        """Read what was held back: calls, or content if there is anything else among them."""
        held, self._held = self._held, ""
        if self._state != "calling":
            return ParsedText(held)
        if self._has_called:
            held = held[self._gap(held) :].rstrip("] \n\t")
            if not held:
                return ParsedText()
        found = calls_in(held, self._names)
        tag = "" if self._has_called or self._tag is None else self._tag
        return ParsedText(tag + held) if found is None else ParsedText(calls=found)

    def _before_tag(self) -> str:
        before, tag, after = self._held.partition(self._tag or "")
        if tag:
            self._state, self._held = "calling", after
            return before if before.strip() else ""
        safe = len(self._held) - overlap(self._held, self._tag or "")
        content, self._held = self._held[:safe], self._held[safe:]
        return content

    def _before_object(self) -> str:
        """Without a tag, an answer that begins with an object is calls."""
        start = self._held.lstrip()
        if self._state == "undecided" and start:
            if start.startswith(("{", LLAMA_TAG)):
                self._state = "calling"
                return ""
            if LLAMA_TAG.startswith(start):
                return ""
            self._state = "content"
        if self._state == "undecided":
            return ""
        content, self._held = self._held, ""
        return content

    def _calls(self) -> list[CallPiece]:
        calls: list[CallPiece] = []
        while self._held:
            if self._call.is_over:
                self._call = self._next_call()
            gap = 0 if self._call.has_begun else self._gap(self._held)
            piece, rest = self._call.push(self._held[gap:])
            if not self._call.has_begun:
                break
            self._has_called = True
            self._held = rest
            calls += [] if piece is None else [piece]
        if self._has_called:
            self._held = self._held.lstrip()
        return calls

    def _next_call(self) -> CallReader:
        return CallReader(self._names, may_lead=self._tag == MISTRAL_TAG)

    def _gap(self, text: str) -> int:
        found = _BETWEEN_CALLS.match(text)
        return found.end() if found else 0


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that may begin `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(tag[:n])), 0)
