"""Thousands of fake sidecars in one process: one port, one loopback address for each pod.

Answers are bytes that were made before, so that little of the machine's time is theirs. What
differs from pod to pod is made live: the instance, the limits, their epoch and their lease.
"""

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fleet.faults import FAULTS, SILENT
from fleet.recordings import Recording

PODS_A_SERVICE: Final = 3
PORT: Final = 8001
"""The admin port, which the operator takes for granted."""
_LIMITS: Final = ("max_batch_size", "token_budget", "step_target_ms", "pace_tpot_ms")
_SHARES: Final = ("interactive_share", "batch_share")


def address(pod: int) -> str:
    """Give the pod's own address: all of 127.0.0.0/8 is this machine."""
    return f"127.{100 + pod // 40_000}.{pod // 200 % 200}.{1 + pod % 200}"


def name(pod: int) -> str:
    """Name a pod by its service's number and its own."""
    return f"s{pod // PODS_A_SERVICE:04}-{pod}"


def uid(service: int) -> str:
    """Give a service a uid that looks drawn, and is the same in each run."""
    drawn = int.from_bytes(f"s{service:04}".encode(), "big") * 0x9E3779B97F4A7C15 % 2**48
    return f"{service:08x}-0000-4000-8000-{drawn:012x}"


@dataclass(slots=True)
class FakePod:
    """One pod's place in its recording, and the limits that it was sent."""

    number: int
    recording: Recording
    place: int
    """The number of the answer that it gave last."""
    state: dict[str, Any] = field(init=False)
    instance: str = field(init=False)
    lease_until: float | None = field(init=False, default=None)
    starts: int = field(init=False, default=0)
    fault: str = field(init=False, default="")
    """A name in `FAULTS`; empty while the pod is honest."""
    neighbour: "FakePod | None" = field(init=False, default=None)
    """The pod whose answers it gives under the fault "another pod's"."""
    counts: Counter[str] = field(init=False, default_factory=Counter)
    started_at: float = field(init=False, default=0.0)
    read_anew_at: float = field(init=False, default=0.0)
    """When somebody read it last who had read nothing before."""
    told_at: float | None = field(init=False, default=None)
    """When this engine was first sent what its service wants."""

    def __post_init__(self) -> None:
        """Begin somewhere in the recording."""
        self.restart(self.place)

    def restart(self, place: int) -> None:
        """Begin as a new engine, with the limits of the recording's first answer."""
        self.place = place
        self.starts += 1
        self.started_at, self.told_at, self.lease_until = time.monotonic(), None, None
        self.instance = f"pod-{self.number}-{self.starts}"
        self.state = msgspec.json.decode(msgspec.json.encode(self.recording.limits))
        self.state |= {"instance": self.instance, "config_hash": "", "epoch": 1}

    def telemetry(self, since: int, *, is_sampled: bool) -> bytes:
        """Answer the next period to who has read the last one, and the last one once more."""
        self.counts["polls"] += 1
        if since == 0:
            self.read_anew_at = time.monotonic()
        if self.fault == "another pod's" and self.neighbour is not None:
            return self.neighbour.shown(is_sampled=is_sampled)
        answers = self.recording.answers
        if since == answers[self.place].next or since == 0:
            self.place += 1
        if self.place == len(answers):
            self.restart(0)
        answer = self.shown(is_sampled=is_sampled)
        return FAULTS[self.fault](answer) if self.fault else answer

    def shown(self, *, is_sampled: bool) -> bytes:
        """Give the answer of the present period."""
        live = self.instance.encode(), name(self.number).encode(), self.limits()
        head = b'{"instance":"%s","pod":"%s","limits":%s,' % live
        answer = self.recording.answers[self.place]
        return head + (answer.sample if is_sampled else answer.records)

    def limits(self) -> bytes:
        """Describe the limits that hold."""
        if self.lease_until is not None:
            self.state["lease_expires_s"] = max(0.0, self.lease_until - time.monotonic())
        return msgspec.json.encode(self.state)

    def patch(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Take a greater epoch's change, renew an equal one's lease, refuse a lesser one's."""
        self.counts["changes" if "max_batch_size" in body else "renewals"] += 1
        self.counts["unsafe"] += not self._is_safe(body)
        if self.lease_until is not None and time.monotonic() > self.lease_until:
            self.counts["leases lost"] += 1
        if self.fault == "another pod's":
            self.counts["sent to the wrong pod"] += 1
        if body.get("instance", self.instance) != self.instance:
            self.counts["refused: another engine's"] += 1
            return 409, self.limits()
        if body["epoch"] < self.state["epoch"]:
            self.counts["refused: old epoch"] += 1
            return 409, self.limits()
        if body["epoch"] > self.state["epoch"]:
            held = {name: body[name] for name in (*_LIMITS, *_SHARES) if name in body}
            self.state["requested"] = self.state["requested"] | held
            self.state["effective"] = self.state["requested"]
            if body.get("certified"):
                self.state["certified"] = self.state["requested"]
            self.state["epoch"] = body["epoch"]
            self.state["config_hash"] = body.get("config_hash", self.state["config_hash"])
            self.told_at = self.told_at or time.monotonic()
        self.lease_until = time.monotonic() + body["lease_s"]
        return 200, self.limits()

    def _is_safe(self, body: dict[str, Any]) -> bool:
        """Whether the pod could serve within these limits."""
        capacity, held = self.state["capacity"], self.state["requested"]
        batch = body.get("max_batch_size", held["max_batch_size"])
        budget = body.get("token_budget", held["token_budget"])
        target = body.get("step_target_ms", held["step_target_ms"])
        return (
            1 <= batch <= capacity["max_batch_size"]
            and batch <= budget <= capacity["max_token_budget"]
            and (target is None or (math.isfinite(target) and target > 0))
        )


class _Connection(asyncio.Protocol):
    """As much of HTTP/1.1 as the operator's client speaks."""

    def __init__(self, pods: dict[str, FakePod]) -> None:
        """Know all pods by their addresses."""
        self._pods = pods
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Know the pod by the address that was called."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pod = self._pods[transport.get_extra_info("sockname")[0]]

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if not found:
            return
        method, path, _ = head.split(b" ", 2)
        length = _length(head)
        if len(rest) < length:
            return
        self._held = rest[length:]
        status, body = 200, b""
        if method == b"GET":
            since = path.partition(b"since=")[2].partition(b"&")[0]
            body = self._pod.telemetry(int(since), is_sampled=b"sample=" in path)
            if body == SILENT:
                return
        else:
            status, body = self._pod.patch(msgspec.json.decode(rest[:length]))
        self._transport.write(
            b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (status, len(body) * (2 if self._pod.fault == "half" else 1))
            + body
        )
        if self._pod.fault == "half":
            self._transport.close()


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def serve(pods: list[FakePod]) -> asyncio.Server:
    """Listen for all of them."""
    by_address = {address(pod.number): pod for pod in pods}
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: _Connection(by_address),
        "0.0.0.0",
        PORT,
        backlog=4096,
    )
