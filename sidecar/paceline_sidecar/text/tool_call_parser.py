"""Split what a model writes into text and tool calls.

Each family writes calls in its own format, which its chat template shows:

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}]             Mistral
              [TOOL_CALLS]name[ARGS]{...}                                 Mistral, newer
    llama     {"name": ..., "parameters": {...}}, and nothing else        Llama 3

A parser takes text piece by piece. It passes content on at once, and a call when it is complete.
What looks like a call and is none, or calls what was not offered, is content.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol

ToolStyle = Literal["hermes", "mistral", "llama"]

_HERMES = ("<tool_call>", "</tool_call>")
_MISTRAL = "[TOOL_CALLS]"
_MISTRAL_ARGUMENTS = "[ARGS]"
_LLAMA_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One function and its arguments, as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The content and the calls in one piece of text."""

    content: str = ""
    calls: tuple[ParsedCall, ...] = ()


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
    if "<tool_call>" in template:
        return "hermes"
    if _MISTRAL in template:
        return "mistral"
    return "llama"


def parser_of(style: ToolStyle, names: Collection[str]) -> ToolCallParser:
    """Choose the parser for one choice; `names` are the functions that were offered."""
    match style:
        case "hermes":
            return HermesParser(names)
        case "mistral":
            return WholeTextParser(_MISTRAL, names)
        case "llama":
            return WholeTextParser(None, names)


class HermesParser:
    """Calls stand between tags, anywhere in the text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._in_call = False

    def push(self, text: str) -> ParsedText:
        """Pass on what is outside of tags, and each call whose tag is closed."""
        self._held += text
        content, calls = "", []
        while True:
            before, tag, after = self._held.partition(_HERMES[self._in_call])
            if not tag:
                break
            self._held = after
            if not self._in_call:
                content += before
            elif (call := _call(_parsed(before), self._names)) is not None:
                calls.append(call)
            else:
                content += before.join(_HERMES)
            self._in_call = not self._in_call
        if not self._in_call:
            safe = len(self._held) - overlap(self._held, _HERMES[0])
            content += self._held[:safe]
            self._held = self._held[safe:]
        # Space around calls belongs to their format.
        is_space = not content.strip() and (calls or self._in_call)
        return ParsedText("" if is_space else content, tuple(calls))

    def finish(self) -> ParsedText:
        """Count a call whose tag was not closed, if it is complete."""
        held, self._held = self._held, ""
        if not self._in_call:
            return ParsedText(held)
        call = _call(_parsed(held), self._names)
        return ParsedText(_HERMES[0] + held) if call is None else ParsedText(calls=(call,))


class WholeTextParser:
    """Takes all from the first sign of a call on as calls, parsed when the text has ended."""

    def __init__(self, tag: str | None, names: Collection[str]) -> None:
        self._tag = tag
        self._names = names
        self._held = ""
        self._state: Literal["undecided", "content", "calling"] = "undecided"

    def push(self, text: str) -> ParsedText:
        """Pass content on until a call begins."""
        self._held += text
        if self._state == "calling":
            return ParsedText()
        if self._tag is None:
            return self._push_bare()
        before, tag, after = self._held.partition(self._tag)
        if tag:
            self._state, self._held = "calling", after
            return ParsedText(before if before.strip() else "")
        safe = len(self._held) - overlap(self._held, self._tag)
        content, self._held = self._held[:safe], self._held[safe:]
        return ParsedText(content)

    def finish(self) -> ParsedText:
        """Parse the calls; if there is anything else among them, all of it is content."""
        held, self._held = self._held, ""
        if self._state != "calling":
            return ParsedText(held)
        found = _calls(held, self._names)
        return ParsedText((self._tag or "") + held) if found is None else ParsedText(calls=found)

    def _push_bare(self) -> ParsedText:
        """Without a tag, an answer that begins with an object is calls."""
        start = self._held.lstrip()
        if self._state == "undecided" and start:
            if start.startswith(("{", _LLAMA_TAG)):
                self._state = "calling"
                return ParsedText()
            if _LLAMA_TAG.startswith(start):
                return ParsedText()
            self._state = "content"
        if self._state == "undecided":
            return ParsedText()
        content, self._held = self._held, ""
        return ParsedText(content)


def _calls(text: str, names: Collection[str]) -> tuple[ParsedCall, ...] | None:
    """Return calls written one after the other; None if there is anything else."""
    found: list[ParsedCall] = []
    rest = text.strip().removeprefix(_LLAMA_TAG).strip()
    while rest:
        name, rest = _leading_name(rest)
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        values = value if isinstance(value, list) else [value]
        if name:
            values = [{"name": name, "arguments": value}]
        calls = [_call(each, names) for each in values]
        if not calls or None in calls:
            return None
        found += [call for call in calls if call is not None]
        rest = rest[end:].lstrip("; \n\t").removeprefix(_MISTRAL).strip()
    return tuple(found) or None


def _leading_name(text: str) -> tuple[str, str]:
    """`name[ARGS]{...}` or `name{...}`: the name and the rest; no name before plain JSON."""
    start = min((at for at in map(text.find, "{[") if at >= 0), default=0)
    return text[:start].strip(), text[start:].removeprefix(_MISTRAL_ARGUMENTS)


def _call(value: Any, names: Collection[str]) -> ParsedCall | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return None
    return ParsedCall(str(value["name"]), json.dumps(arguments, ensure_ascii=False))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that may begin `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(tag[:n])), 0)
