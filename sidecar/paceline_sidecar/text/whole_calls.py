"""Read calls from a text that is complete."""

import json
from collections.abc import Collection
from typing import Any

from paceline_sidecar.text.call_reader import CallPiece

MISTRAL_TAG = "[TOOL_CALLS]"
LLAMA_TAG = "<|python_tag|>"
_MISTRAL_ARGUMENTS = "[ARGS]"


def calls_in(text: str, names: Collection[str]) -> tuple[CallPiece, ...] | None:
    """Return calls written one after the other; None if there is anything else."""
    found: list[CallPiece] = []
    rest = text.strip().removeprefix(LLAMA_TAG).strip()
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
        rest = rest[end:].lstrip("; \n\t").removeprefix(MISTRAL_TAG).strip()
    return tuple(found) or None


def call_in(text: str, names: Collection[str]) -> CallPiece | None:
    """Return the one call that a text is; None if it is anything else."""
    return _call(_parsed(text), names)


def _leading_name(text: str) -> tuple[str, str]:
    """`name[ARGS]{...}` or `name{...}`: the name and the rest; no name before plain JSON."""
    start = min((at for at in map(text.find, "{[") if at >= 0), default=0)
    return text[:start].strip(), text[start:].removeprefix(_MISTRAL_ARGUMENTS)


def _call(value: Any, names: Collection[str]) -> CallPiece | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return None
    return CallPiece(json.dumps(arguments, ensure_ascii=False), str(value["name"]))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
