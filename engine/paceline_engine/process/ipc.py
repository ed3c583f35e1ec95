"""The socket to the sidecar, which a thread of its own serves.

It answers `Hello` from the first moment on, also while the model loads and while a long step runs,
and repeats the last telemetry when the step loop has none: a heartbeat that no step delays.
There is one peer, the last that said `Hello`: when another comes, or the peer has gone, the step
loop receives `PeerLost`.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import msgspec
import zmq

from paceline_engine.errors import BadSettings
from paceline_engine.grammar.grammar import CompiledGrammar
from paceline_engine.process.fetching import Fetched
from paceline_wire import (
    Abort,
    EngineTelemetry,
    Failed,
    FromEngine,
    Hello,
    LoadAdapter,
    Loading,
    ProfileSteps,
    Ready,
    SetLimits,
    Submit,
    UnloadAdapter,
    decode_to_engine,
    encode,
)

SOCKET_NAME = "engine.sock"
HEARTBEAT_S = 0.2
_LINGER_MS = 1000
_MAX_PATH_BYTES = 107  # of a Unix socket on Linux

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The peer that submitted the requests is gone."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what is in the engine, then leave; the second one leaves at once."""


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """The thread of the socket has ended with an error: no message can be sent any more."""


FromSidecar = Submit | Abort | SetLimits | LoadAdapter | UnloadAdapter | ProfileSteps
FromLink = FromSidecar | CompiledGrammar | Fetched | PeerLost | LinkBroken | Stop
"""All that the step loop finds in its inbox."""
Greeting = Loading | Ready | Failed
"""The answer to `Hello`."""


class Link:
    """Moves messages between the peer and two queues."""

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        self.inbox: SimpleQueue[FromLink] = SimpleQueue()
        self._clock = clock
        self._outbox: SimpleQueue[FromEngine | None] = SimpleQueue()
        self._greeting: Greeting = Loading("start", 0.0)
        self._peer: bytes | None = None
        self._telemetry: EngineTelemetry | None = None
        self._telemetry_sent_at = 0.0

        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a peer that has gone is an error
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.LINGER, _LINGER_MS)
        try:
            self._bind(run_dir / SOCKET_NAME)
        except BadSettings:
            self._router.close()
            self._context.term()
            raise
        # The step loop rings this bell when it has put something into the outbox.
        self._bell = self._context.socket(zmq.PAIR)
        self._bell.bind("inproc://outbox")
        self._ringer = self._context.socket(zmq.PAIR)
        self._ringer.connect("inproc://outbox")
        self._ringing = threading.Lock()  # progress of a download may come from any thread
        self._thread = threading.Thread(target=self._serve, name="paceline-ipc", daemon=True)
        self._thread.start()

    def greet(self, greeting: Greeting) -> None:
        """Answer every later `Hello` with this, and send it now."""
        self._greeting = greeting
        self.send(greeting)

    def renew_greeting(self, greeting: Greeting) -> None:
        """Answer every later `Hello` with this."""
        self._greeting = greeting

    def send(self, message: FromEngine) -> None:
        """Give a message to the peer, if there is one."""
        self._put(message)

    def close(self) -> None:
        """Send what is left and close the socket."""
        self._put(None)
        self._thread.join()
        self._ringer.close()
        self._context.term()

    def _put(self, message: FromEngine | None) -> None:
        self._outbox.put(message)
        # A full ringer means that wake-ups are pending already: another one is not needed.
        with self._ringing, contextlib.suppress(zmq.Again):
            self._ringer.send(b"", zmq.NOBLOCK)

    def _bind(self, path: Path) -> None:
        address = str(path.absolute())
        if len(address.encode()) > _MAX_PATH_BYTES:
            raise BadSettings(
                f"PACELINE_ENGINE_RUN_DIR: the socket's path must be at most {_MAX_PATH_BYTES}"
                f" bytes, got {address!r}"
            )
        try:
            self._router.bind(f"ipc://{address}")
        except zmq.ZMQError as error:
            raise BadSettings(f"PACELINE_ENGINE_RUN_DIR: cannot bind {address}: {error}") from error

    def _serve(self) -> None:
        try:
            self._move_messages()
        except Exception:  # noqa: BLE001 - whatever it is, the step loop must end too
            _log.exception("the socket to the sidecar is broken")
            self.inbox.put(LinkBroken())
        finally:
            self._router.close()
            self._bell.close()

    def _move_messages(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        is_open = True
        while is_open:
            ready = dict(poller.poll(int(HEARTBEAT_S * 1e3)))
            if self._router in ready:
                self._receive()
            if self._bell in ready:
                self._bell.recv()
                is_open = self._send_all()
            self._beat()

    def _receive(self) -> None:
        peer, *frames = self._router.recv_multipart()
        try:
            message = decode_to_engine(frames[-1] if frames else b"")
        except msgspec.DecodeError as error:
            _log.warning("a message that cannot be read was dropped: %s", error)
            return
        if isinstance(message, Hello):
            self._welcome(peer)
        elif peer == self._peer:
            self.inbox.put(message)
        else:
            _log.warning("a message from a peer that has not said Hello was dropped")

    def _welcome(self, peer: bytes) -> None:
        if peer != self._peer:
            if self._peer is not None:
                self.inbox.put(PeerLost())
            self._peer = peer
        self._transmit(self._greeting)

    def _send_all(self) -> bool:
        """Send what the outbox holds; False after the last message of all."""
        while not self._outbox.empty():
            message = self._outbox.get()
            if message is None:
                return False
            if isinstance(message, EngineTelemetry):
                # Its records go once; what is repeated as a heartbeat is the rest.
                self._telemetry = msgspec.structs.replace(message, steps=[])
                self._telemetry_sent_at = self._clock()
            self._transmit(message)
        return True

    def _beat(self) -> None:
        now = self._clock()
        # Half a period of grace, so that a slightly late message of the step loop comes first.
        if self._telemetry is not None and now - self._telemetry_sent_at >= 1.5 * HEARTBEAT_S:
            self._telemetry_sent_at = now
            self._transmit(msgspec.structs.replace(self._telemetry, at=now))

    def _transmit(self, message: FromEngine) -> None:
        if self._peer is None:
            return
        try:
            self._router.send_multipart([self._peer, encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._peer = None
            self.inbox.put(PeerLost())
