"""A warm start as JSON: one document, whose entries are read one by one.

    {"version": 1, "entries": [{"key": {...}, "sla": {...}, "theta": [...], ...}, ...]}

Fields are those of `WarmStartEntry`, names as there.
"""

from dataclasses import replace

import msgspec

from paceline_tuner.warm_start import MAX_ENTRIES, WarmStart
from paceline_tuner.warm_start_entry import WarmStartEntry

_VERSION = 1
_MAX_BYTES = 512 * 1024  # half of what a ConfigMap holds
_DIGITS = 4
_SHOWN_CHARACTERS = 200


class _Document(msgspec.Struct):
    version: int
    entries: list[msgspec.Raw]


def encode(warm_start: WarmStart) -> str:
    """Write a warm start; where it would be too long, without its oldest entries."""
    parts: list[bytes] = []
    size = 0
    for entry in reversed(warm_start.entries):
        part = msgspec.json.encode(_short(entry))
        size += len(part) + 1
        if size > _MAX_BYTES:
            break
        parts.append(part)
    document = _Document(_VERSION, [msgspec.Raw(part) for part in reversed(parts)])
    return msgspec.json.encode(document).decode()


def decode(text: str) -> tuple[WarmStart, list[str]]:
    """Read a warm start, and tell what is wrong with each entry that had to be left out."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return WarmStart(), [f"not a warm start: {error}"]
    if document.version != _VERSION:
        return WarmStart(), [f"version {document.version}, wanted {_VERSION}"]
    problems, entries = [], []
    for number, raw in enumerate(document.entries):
        try:
            entry = msgspec.json.decode(raw, type=WarmStartEntry)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            problems.append(f"entry {number}: {str(error)[:_SHOWN_CHARACTERS]}")
            continue
        if entry.is_sound:
            entries.append(entry)
        else:
            problems.append(f"entry {number}: holds numbers that cannot be")
    # Two entries under one key and SLA may come of a person's edit: the newer stays.
    newest = {(entry.key, entry.sla): entry for entry in sorted(entries, key=lambda e: e.at)}
    kept = sorted(newest.values(), key=lambda e: e.at)
    return WarmStart(tuple(kept[-MAX_ENTRIES:])), problems


def _short(entry: WarmStartEntry) -> WarmStartEntry:
    """Corrections hold two digits of truth; their number is what makes an entry long."""
    return replace(entry, correction=tuple(round(factor, _DIGITS) for factor in entry.correction))
