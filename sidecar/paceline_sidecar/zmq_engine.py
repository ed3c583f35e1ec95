"""The engine process over ZeroMQ: one DEALER per connection, watched by a socket monitor.

A connection is a socket. When the peer is gone the socket is closed with all that it still held
and a new one says `Hello`, so nothing of a dead engine can reach the requests of its successor.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

import paceline_wire as wire
from paceline_sidecar.backend import Arrival, Deliver, EngineView, Listener
from paceline_sidecar.errors import Unavailable, UnavailableReason

_log = logging.getLogger(__name__)

_HELLO_INTERVAL_S = 0.05
_CALL_TIMEOUT_S = 10.0
_WRITING_S = 60.0
"""Seconds for writing the trace of many steps while the engine goes on with others."""
_LOOKS = 20
"""Checks per `heartbeat_s`: silence is noticed a twentieth of it late at most."""
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 500

EngineCall = wire.SetLimits | wire.LoadAdapter | wire.UnloadAdapter | wire.ProfileSteps
EngineReply = wire.LimitsState | wire.AdaptersState | wire.StepTrace


class ZmqEngine:
    """A `Backend` over `ipc://`; `run()` keeps the connection until it is cancelled."""

    def __init__(
        self,
        socket_path: Path,
        *,
        heartbeat_s: float = 8.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = f"ipc://{socket_path}"
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._view = EngineView()
        self._listeners: list[Listener] = []
        self._deliveries: dict[str, Deliver] = {}
        self._calls: dict[int, asyncio.Future[EngineReply]] = {}
        self._last_call = 0
        self._socket: zmq.asyncio.Socket | None = None

    @property
    def view(self) -> EngineView:
        """The engine as last heard of."""
        return self._view

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change and every heartbeat."""
        self._listeners.append(listener)

    def submit(self, message: wire.Submit, deliver: Deliver) -> None:
        """Send one request; its outputs go to `deliver`."""
        if self._view.phase != "ready":
            raise self._unavailable()
        self._deliveries[message.id] = deliver
        try:
            self._send(message)
        except zmq.ZMQError as error:
            del self._deliveries[message.id]
            raise Unavailable("engine_lost", "The engine takes no messages.") from error

    def abort(self, ids: list[str]) -> None:
        """Forget these requests, here at once and in the engine within two steps."""
        for request_id in ids:
            self._deliveries.pop(request_id, None)
        # An engine that is gone, or whose pipe is full, forgets them by being restarted.
        with contextlib.suppress(zmq.ZMQError):
            self._send(wire.Abort(ids=ids))

    async def set_limits(self, change: wire.SetLimits) -> wire.LimitsState:
        """Send one change and wait for the state that answers it."""
        return cast("wire.LimitsState", await self._ask(change))

    async def change_adapters(
        self, change: wire.LoadAdapter | wire.UnloadAdapter
    ) -> wire.AdaptersState:
        """Send one change and wait for the state that answers it."""
        return cast("wire.AdaptersState", await self._ask(change))

    async def profile_steps(self, asked: wire.ProfileSteps) -> wire.StepTrace:
        """Ask for a profile, and wait until it is recorded and written."""
        timeout_s = asked.within_s + _WRITING_S
        return cast("wire.StepTrace", await self._ask(asked, timeout_s=timeout_s))

    async def _ask(self, change: EngineCall, *, timeout_s: float = _CALL_TIMEOUT_S) -> EngineReply:
        if self._view.phase != "ready":
            raise self._unavailable()
        self._last_call += 1
        call = self._last_call
        answer = self._calls[call] = asyncio.get_running_loop().create_future()
        try:
            self._send(msgspec.structs.replace(change, call=call))
            return await asyncio.wait_for(answer, timeout_s)
        except (TimeoutError, zmq.ZMQError) as error:
            message = f"The engine did not answer within {timeout_s:g} s."
            raise Unavailable("engine_stalled", message) from error
        finally:
            self._calls.pop(call, None)

    async def run(self) -> None:
        """Connect, serve until the engine is gone, fail what was in flight, connect again."""
        context = zmq.asyncio.Context()
        try:
            while True:
                try:
                    await self._one_connection(context)
                except (msgspec.DecodeError, msgspec.ValidationError) as error:
                    # Which request it was about is not known: all in flight have failed.
                    _log.error("the engine says what cannot be read: %s", error)
                    await asyncio.sleep(_RECONNECT_MAX_MS / 1e3)
        finally:
            self._socket = None
            self._fail_in_flight("the sidecar is leaving")
            context.destroy(linger=0)

    async def _one_connection(self, context: zmq.asyncio.Context) -> None:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an engine that is not there
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(self._address)
        self._socket = socket
        tasks = [
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._greet()),
            asyncio.create_task(self._watch_heartbeat()),
            asyncio.create_task(_disconnected(monitor)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket = None
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
            self._fail_in_flight("the engine went away")

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frame = await socket.recv(copy=True)
            self._handle(wire.decode_from_engine(frame))

    async def _greet(self) -> None:
        while True:
            if self._view.phase not in {"ready", "stalled"}:
                with contextlib.suppress(zmq.ZMQError):  # nobody there yet
                    self._send(wire.Hello())
            await asyncio.sleep(_HELLO_INTERVAL_S)

    async def _watch_heartbeat(self) -> None:
        every_s = self._heartbeat_s / _LOOKS
        silent_s, looked_at = 0.0, self._clock()
        heard_at = self._view.heard_at
        while True:
            await asyncio.sleep(every_s)
            now = self._clock()
            # A look that comes late was held up itself: a message may lie here unread.
            silent_s += min(now - looked_at, 2 * every_s)
            looked_at = now
            if heard_at != self._view.heard_at:
                silent_s, heard_at = 0.0, self._view.heard_at
            if self._view.phase == "ready" and silent_s >= self._heartbeat_s:
                self._stall(silent_s)

    def _stall(self, silent_s: float) -> None:
        """Give up what is in flight: an engine that is stopped, or hangs as a whole, tells nobody.

        Should it go on, it is told to forget these requests, and is ready again.
        """
        detail = f"the engine lives but has been silent for {silent_s:.1f} s"
        self._publish(replace(self._view, phase="stalled", detail=detail))
        self.abort(self._lose(Unavailable("engine_stalled", f"The request was lost: {detail}.")))

    def _send(self, message: wire.ToEngine) -> None:
        if self._socket is None:
            raise zmq.ZMQError(zmq.ENOTCONN)
        # Without waiting the future is already done; only this socket's own `send` wakes its
        # receiver again, because ZeroMQ's file descriptor is edge-triggered.
        sent = self._socket.send(wire.encode(message), zmq.NOBLOCK)
        cast("asyncio.Future[object]", sent).result()

    def _handle(self, message: wire.FromEngine) -> None:
        now = self._clock()
        match message:
            case wire.Outputs(outputs=outputs):
                self._deliver(outputs, now)
            case wire.EngineTelemetry():
                self._note_heartbeat(now)
                for listener in self._listeners:
                    _shielded(partial(listener.telemetry_arrived, message))
            case wire.LimitsState():
                self._publish(replace(self._view, limits=message, heard_at=now))
                self._answer(message)
            case wire.AdaptersState():
                names, paths = tuple(message.adapters), tuple(message.paths)
                self._publish(
                    replace(self._view, adapters=names, adapter_paths=paths, heard_at=now)
                )
                self._answer(message)
            case wire.StepTrace():
                self._answer(message)
            case wire.Ready():
                self._ready(message, now)
            case wire.Loading():
                detail = loading_words(message)
                self._publish(
                    EngineView(phase="loading", detail=detail, loading=message, heard_at=now)
                )
            case wire.Failed():
                detail = f"{message.reason}: {message.message}"
                self._publish(EngineView(phase="failed", detail=detail, heard_at=now))
                self._lose(Unavailable("engine_lost", f"The request was lost: {detail}."))

    def _answer(self, message: EngineReply) -> None:
        waiting = self._calls.pop(message.call, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _ready(self, message: wire.Ready, now: float) -> None:
        if self._view.instance and self._view.instance != message.instance:
            self._fail_in_flight("the engine was restarted")
        self._publish(
            EngineView(
                phase="ready",
                detail="",
                instance=message.instance,
                model=message.model,
                limits=message.limits,
                adapters=tuple(message.adapters),
                adapter_paths=tuple(message.adapter_paths),
                profile=message.profile,
                heard_at=now,
            )
        )

    def _note_heartbeat(self, now: float) -> None:
        if self._view.phase == "stalled":
            self._publish(replace(self._view, phase="ready", detail="", heard_at=now))
        else:
            # A heartbeat changes nothing that listeners hear of.
            self._view = replace(self._view, heard_at=now)

    def _deliver(self, outputs: list[wire.Output], now: float) -> None:
        """Hand each request its output; written out, for this is done for every token."""
        deliveries = self._deliveries
        for output in outputs:
            take = deliveries.get if output.finish is None else deliveries.pop
            deliver = take(output.id, None)
            if deliver is not None:
                try:
                    deliver(Arrival(now, output))
                except Exception:  # noqa: BLE001 - as in `_shielded`
                    _log.exception("a request could not take its output")

    def _fail_in_flight(self, detail: str) -> None:
        """Fail everything in flight at once: nobody will answer it."""
        calls, self._calls = self._calls, {}
        if self._view.phase != "absent":
            # The reason of a failed engine stays readable after its end.
            kept = self._view.detail if self._view.phase == "failed" else detail
            self._publish(EngineView(phase="absent", detail=kept))
        lost = Unavailable("engine_lost", f"The request was lost: {detail}.")
        self._lose(lost)
        for call in calls.values():
            if not call.done():
                call.set_exception(lost)

    def _lose(self, why: Unavailable) -> list[str]:
        """Fail every request in flight; return their ids."""
        in_flight, self._deliveries = self._deliveries, {}
        for deliver in in_flight.values():
            _shielded(partial(deliver, why))
        return list(in_flight)

    def _publish(self, view: EngineView) -> None:
        before, self._view = self._view, view
        for listener in self._listeners:
            _shielded(partial(listener.engine_changed, before, view))

    def _unavailable(self) -> Unavailable:
        reasons: dict[str, UnavailableReason] = {"stalled": "engine_stalled"}
        reason = reasons.get(self._view.phase, "engine_starting")
        return Unavailable(reason, f"Not ready: {self._view.detail}.")


def _shielded(tell: Callable[[], None]) -> None:
    """Call one listener; an exception in it must not end the connection for all."""
    try:
        tell()
    except Exception:  # noqa: BLE001 - whatever is wrong with one, the others are served
        _log.exception("a listener of the engine failed")


async def _disconnected(monitor: zmq.asyncio.Socket) -> None:
    """Return when the peer of the monitored socket is gone."""
    await recv_monitor_message(monitor)


def loading_words(message: wire.Loading) -> str:
    """Return what `/health/ready` reports as missing; `paceline up` draws its bar from it."""
    return f"the engine is loading: {message.stage} {message.fraction:.0%}"
