"""Counts the operator's requests in the API server's audit log. Pure."""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any


def count(lines: Iterable[str], *, account: str, since: float, until: float) -> Counter[str]:
    """Count the requests of this account that arrived between two times, by verb and resource.

    The times are seconds since the epoch. A watch counts once, when it is opened.
    """
    counted: Counter[str] = Counter()
    for line in lines:
        event = _event(line)
        if event is None or event["user"]["username"] != account:
            continue
        # A watch is logged twice: when its answer begins, and when it ends.
        if event["verb"] == "watch" and event["stage"] == "ResponseComplete":
            continue
        arrived_at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if since <= arrived_at < until:
            counted[_what(event)] += 1
    return counted


def _event(line: str) -> dict[str, Any] | None:
    """Read one event; None for a line that is not written whole yet."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def _what(event: dict[str, Any]) -> str:
    asked = event.get("objectRef")
    if asked is None:
        return f"{event['verb']} (discovery)"
    resource = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
    return f"{event['verb']} {resource}"
