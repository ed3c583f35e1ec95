"""Tool calls in what a model writes, told from what it says.

Each family writes calls in its own way; which one, its chat template tells:

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>    Hermes, Qwen
    mistral   [TOOL_CALLS][{"name": ..., "arguments": {...}}]             Mistral
              [TOOL_CALLS]name[ARGS]{...}                                 Mistral, newer
    llama     {"name": ..., "parameters": {...}}, and nothing else        Llama 3

A reader takes text piece by piece. It passes on at once what is said, and a call when it is whole.
What looks like a call and is none, or calls what was not offered, is said.
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
class Read:
    """What one piece of text gave."""

    said: str = ""
    calls: tuple[ParsedCall, ...] = ()


class CallReader(Protocol):
    """Reads one choice."""

    def push(self, text: str) -> Read:
        """Take the next piece of text."""
        ...

    def finish(self) -> Read:
        """Take the end of the text: what was held back."""
        ...


def style_of(template: str) -> ToolStyle:
    """How a model writes calls whose chat template takes tools."""
    if "<tool_call>" in template:
        return "hermes"
    if _MISTRAL in template:
        return "mistral"
    return "llama"


def reader_of(style: ToolStyle, names: Collection[str]) -> CallReader:
    """A reader for one choice; `names` are the functions that were offered."""
    match style:
        case "hermes":
            return HermesReader(names)
        case "mistral":
            return WholeReader(_MISTRAL, names)
        case "llama":
            return WholeReader(None, names)


class HermesReader:
    """Calls stand between tags, anywhere in the text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._in_call = False

    def push(self, text: str) -> Read:
        """Pass on what is outside of tags, and each call that is closed."""
        self._held += text
        said, calls = "", []
        while True:
            before, tag, after = self._held.partition(_HERMES[self._in_call])
            if not tag:
                break
            self._held = after
            if not self._in_call:
                said += before
            elif (call := _call(_parsed(before), self._names)) is not None:
                calls.append(call)
            else:
                said += before.join(_HERMES)
            self._in_call = not self._in_call
        if not self._in_call:
            safe = len(self._held) - _overlap(self._held, _HERMES[0])
            said += self._held[:safe]
            self._held = self._held[safe:]
        # Space around calls is how they are written, not what is said.
        is_space = not said.strip() and (calls or self._in_call)
        return Read("" if is_space else said, tuple(calls))

    def finish(self) -> Read:
        """A call that was not closed counts if it is whole."""
        held, self._held = self._held, ""
        if not self._in_call:
            return Read(held)
        call = _call(_parsed(held), self._names)
        return Read(_HERMES[0] + held) if call is None else Read(calls=(call,))


class WholeReader:
    """Everything from the first sign of a call on is calls: read when the text has ended."""

    def __init__(self, tag: str | None, names: Collection[str]) -> None:
        self._tag = tag
        self._names = names
        self._held = ""
        self._state: Literal["undecided", "saying", "calling"] = "undecided"

    def push(self, text: str) -> Read:
        """Pass on what is said until a call begins."""
        self._held += text
        if self._state == "calling":
            return Read()
        if self._tag is None:
            return self._push_bare()
        before, tag, after = self._held.partition(self._tag)
        if tag:
            self._state, self._held = "calling", after
            return Read(before if before.strip() else "")
        safe = len(self._held) - _overlap(self._held, self._tag)
        said, self._held = self._held[:safe], self._held[safe:]
        return Read(said)

    def finish(self) -> Read:
        """Read the calls; if there is anything else among them, all of it is said."""
        held, self._held = self._held, ""
        if self._state != "calling":
            return Read(held)
        found = _calls(held, self._names)
        return Read((self._tag or "") + held) if found is None else Read(calls=found)

    def _push_bare(self) -> Read:
        """Without a tag, an answer that begins with an object is calls."""
        start = self._held.lstrip()
        if self._state == "undecided" and start:
            if start.startswith(("{", _LLAMA_TAG)):
                self._state = "calling"
                return Read()
            if _LLAMA_TAG.startswith(start):
                return Read()
            self._state = "saying"
        if self._state == "undecided":
            return Read()
        said, self._held = self._held, ""
        return Read(said)


def _calls(text: str, names: Collection[str]) -> tuple[ParsedCall, ...] | None:
    """Calls one after the other; None if there is anything else."""
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


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that may begin `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(tag[:n])), 0)
