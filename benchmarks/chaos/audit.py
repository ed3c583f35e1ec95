"""Finds writes by two leaders in the API server's audit log. Pure.

A pod holds the Lease from its successful write of it until another pod's. The log has neither
bodies nor the order of the store, so a write that was under way while another pod took the Lease
is counted apart: it may have been stored before.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_POD = "authentication.kubernetes.io/pod-name"
_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Questions that are asked by a create; nothing is stored.
_QUESTIONS = frozenset(
    {"selfsubjectaccessreviews", "selfsubjectreviews", "subjectaccessreviews", "tokenreviews"}
)


@dataclass(frozen=True, slots=True)
class Write:
    """One write that the API server did for a pod, in its own clock's seconds."""

    pod: str
    verb: str
    resource: str
    name: str
    began_at: float
    ended_at: float

    @property
    def is_lease(self) -> bool:
        """Whether it takes, renews or gives back the Lease."""
        return self.resource == "leases"


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of the operator's writes in the audit log, by who led when they were made."""

    num_writes: int
    num_leaders: int
    by_two: tuple[Write, ...]
    """Begun while another pod held the Lease."""
    at_handover: tuple[Write, ...]
    """Under way while another pod took it."""


def find(lines: Iterable[str], *, account: str) -> Findings:
    """Judge every write of this service account (`system:serviceaccount:NAMESPACE:NAME`).

    Raises `ValueError` where the account wrote nothing: then the log is not the operator's.
    """
    written = sorted(_writes(lines, account), key=lambda write: write.ended_at)
    leases = [write for write in written if write.is_lease]
    others = [write for write in written if not write.is_lease]
    if not leases or not others:
        raise ValueError(f"the audit log has no writes of {account}")
    return Findings(
        num_writes=len(others),
        num_leaders=len({lease.pod for lease in leases}),
        by_two=tuple(write for write in others if _holder(leases, write) not in {"", write.pod}),
        at_handover=tuple(
            write
            for write in others
            if _holder(leases, write) in {"", write.pod} and _is_crossed(leases, write)
        ),
    )


def _holder(leases: Sequence[Write], write: Write) -> str:
    """Return the pod that held the Lease as the write began; empty before the first."""
    before = (lease.pod for lease in reversed(leases) if lease.ended_at <= write.began_at)
    return next(before, "")


def _is_crossed(leases: Sequence[Write], write: Write) -> bool:
    return any(
        lease.pod != write.pod
        and lease.began_at < write.ended_at
        and lease.ended_at > write.began_at
        for lease in leases
    )


def _writes(lines: Iterable[str], account: str) -> Iterator[Write]:
    for line in lines:
        event = _read(line)
        if event is None or event["user"]["username"] != account:
            continue
        what = event.get("objectRef", {})
        code = event.get("responseStatus", {}).get("code", 0)
        is_dry = "dryRun=" in event["requestURI"]
        is_done = event["verb"] in _VERBS and 200 <= code < 300 and not is_dry
        if is_done and what.get("resource") not in _QUESTIONS:
            subresource = what.get("subresource")
            yield Write(
                pod=event["user"]["extra"][_POD][0],
                verb=event["verb"],
                resource="/".join(part for part in (what["resource"], subresource) if part),
                name=what.get("name", ""),
                began_at=_seconds(event["requestReceivedTimestamp"]),
                ended_at=_seconds(event["stageTimestamp"]),
            )


def _read(line: str) -> dict[str, Any] | None:
    """Read one event; None for a line that a stopped API server did not finish."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return event


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
