"""An engine without a model: it speaks `wire` over a real socket and says what it is told to say.

In a test's own process it is a thread; `python -m paceline_testing.scripted_engine RUN_DIR`
makes it a process that can be killed.
"""

import struct
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import msgspec
import zmq

import paceline_wire as wire
from paceline_testing.byte_tokenizer import (
    CHAT_TEMPLATE,
    EOS_ID,
    VOCAB_SIZE,
    byte_tokenizer,
    write_tokenizer,
)
from paceline_wire import limits

_POLL_MS = 2
_HEARTBEAT_S = 0.05
_EMBEDDING = struct.pack("<2f", 0.6, -0.8)
CAPACITY = limits.Capacity(
    max_batch_size=64, max_token_budget=1024, num_blocks=256, block_size=16, max_model_len=512
)


def a_model() -> wire.ModelInfo:
    """A model that needs no memory."""
    return wire.ModelInfo(
        name="scripted",
        family="llama",
        revision="",
        dtype="float32",
        device="cpu",
        num_parameters=1000,
        vocab_size=VOCAB_SIZE,
        max_model_len=CAPACITY.max_model_len,
        bos_token_id=None,
        eos_token_ids=[EOS_ID],
        kv_bytes_per_token=64,
        weight_bytes=4000,
        max_loras=4,
    )


def a_step_model() -> wire.StepModelInfo:
    """A model of the step time that nobody has fitted."""
    return wire.StepModelInfo(
        theta=[0.0] * 5,
        prior=[0.0] * 5,
        knee=256,
        correction=[1.0],
        fast=1.0,
        q_r=1.0,
        samples=0,
        mape=0.04,
        valid=True,
        reason="",
    )


def an_engine_load(*, waiting: int = 0, running: int = 0) -> wire.EngineLoad:
    """An engine that is idle but for what is given."""
    return wire.EngineLoad(
        running=running,
        waiting=waiting,
        waiting_tokens=0,
        oldest_waiting_s=0.0,
        kv_used_blocks=3,
        kv_cached_blocks=5,
        prefix_queries=40,
        prefix_hits=10,
        preemptions=2,
        prompt_tokens=100,
        output_tokens=50,
        gc_pause_ms=1.5,
        draft_tokens=12,
        accepted_tokens=6,
        drafts=4,
        accepted_by_position=[4, 2],
        waiting_by_lane={"interactive": waiting},
        running_by_lane={"interactive": running},
    )


def a_step(
    seq: int = 1,
    *,
    at: float = 0.0,
    wall_ms: float = 10.0,
    decode: int = 4,
    prefill: int = 0,
    waiting_tokens: int = 0,
) -> wire.StepRecord:
    """One step."""
    return wire.StepRecord(
        seq=seq,
        at=at,
        wall_ms=wall_ms,
        host_ms=0.5,
        decode=decode,
        prefill=prefill,
        context=400,
        attention=0,
        running=decode,
        waiting=0,
        waiting_tokens=waiting_tokens,
        kv_used=3,
        preemptions=0,
        epoch=1,
        token_budget=1024,
        paced_tokens=1024,
        predicted_ms=9.0,
        clean=True,
    )


@dataclass(slots=True)
class Script:
    """What the engine does; may be changed while it runs."""

    reply: str = "Hello, world!"
    """The text of every answer."""
    hold_after: int | None = None
    """Tokens of each answer before the engine falls silent; None speaks to the end."""
    ready: bool = True
    """False: it says `Loading` for ever."""
    has_tokenizer: bool = False
    """Whether `Loading` says that the tokenizer's files are there."""
    silent: bool = False
    """No heartbeats."""
    garbage: bytes = b""
    """Sent to everybody, once, instead of a message."""
    cached_tokens: int = 0
    chat_template: str = CHAT_TEMPLATE
    """Read when the engine starts."""
    error: str | None = None
    """Every request ends with this error at once."""
    load: wire.EngineLoad = field(default_factory=an_engine_load)
    profile: wire.StepProfile | None = None
    """What it says of its start."""
    steps: list[wire.StepRecord] = field(default_factory=list)
    """Sent with the next heartbeat, once."""


@dataclass(slots=True)
class _Running:
    peer: bytes
    submit: wire.Submit
    answer: Iterator[int]
    sent: int = 0


class ScriptedEngine:
    """Started and stopped as a context manager; `stop()` is as abrupt as a kill."""

    def __init__(self, run_dir: Path, script: Script | None = None) -> None:
        self.script = script or Script()
        self.instance = uuid.uuid4().hex
        self.submitted: list[wire.Submit] = []
        self.aborted: list[str] = []
        self.adapters: dict[str, str] = {}
        """Path by name."""
        self.changes: list[wire.SetLimits] = []
        self.run_dir = run_dir
        self._tokenizer = byte_tokenizer()
        self._running: dict[str, _Running] = {}
        self._peers: set[bytes] = set()
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="scripted-engine", daemon=True)
        self._next_heartbeat = 0.0
        self._state = _first_limits_state()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> int:
        """Requests that are neither finished nor aborted."""
        return len(self._running)

    def start(self) -> None:
        """Write the tokenizer, bind the socket."""
        write_tokenizer(self.run_dir, self.script.chat_template)
        self._thread.start()
        self._listening.wait(timeout=10)

    def stop(self) -> None:
        """Close the socket without a word."""
        self._stop.set()
        self._thread.join(timeout=10)

    def serve_until_killed(self) -> None:
        """Run in this thread."""
        write_tokenizer(self.run_dir)
        self._loop()

    def _loop(self) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self.run_dir}/engine.sock")
        self._listening.set()
        try:
            while not self._stop.is_set():
                if socket.poll(_POLL_MS):
                    peer, frame = socket.recv_multipart()
                    self._take(socket, peer, wire.decode_to_engine(frame))
                self._babble(socket)
                self._step(socket)
                self._beat(socket)
        finally:
            socket.close(linger=0)
            context.term()

    def _take(self, socket: zmq.Socket[bytes], peer: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._greet(socket, peer)
            case wire.Submit():
                self.submitted.append(message)
                ids = self._tokenizer.encode(self.script.reply).ids
                self._running[message.id] = _Running(peer, message, iter([*ids, EOS_ID]))
            case wire.Abort(ids=ids):
                self.aborted.extend(ids)
                for request_id in ids:
                    self._running.pop(request_id, None)
            case wire.LoadAdapter():
                _send(socket, peer, self._load_adapter(message))
            case wire.UnloadAdapter(call=call, name=name):
                error = None if name in self.adapters else f"There is no adapter {name!r}."
                self.adapters.pop(name, None)
                _send(socket, peer, self._adapters_state(call, error))
            case wire.SetLimits():
                self.changes.append(message)
                self._change(message)
                _send(socket, peer, self._state)

    def _load_adapter(self, message: wire.LoadAdapter) -> wire.AdaptersState:
        """Every path holds an adapter but those that say so."""
        if "missing" in message.path:
            return self._adapters_state(message.call, f"{message.path} is missing.")
        self.adapters[message.name] = message.path
        return self._adapters_state(message.call)

    def _adapters_state(self, call: int, error: str | None = None) -> wire.AdaptersState:
        return wire.AdaptersState(call, [*self.adapters], error, [*self.adapters.values()])

    def _greet(self, socket: zmq.Socket[bytes], peer: bytes) -> None:
        if not self.script.ready:
            _send(socket, peer, wire.Loading("weights", 0.5, self.script.has_tokenizer))
            return
        self._peers.add(peer)
        names, paths = [*self.adapters], [*self.adapters.values()]
        profile = self.script.profile
        ready = wire.Ready(self.instance, a_model(), self._state, names, paths, profile)
        _send(socket, peer, ready)

    def _babble(self, socket: zmq.Socket[bytes]) -> None:
        garbage, self.script.garbage = self.script.garbage, b""
        for peer in self._peers if garbage else ():
            socket.send_multipart([peer, garbage])

    def _step(self, socket: zmq.Socket[bytes]) -> None:
        by_peer: dict[bytes, list[wire.Output]] = {}
        for running in list(self._running.values()):
            output = self._output(running)
            if output is not None:
                by_peer.setdefault(running.peer, []).append(output)
        for peer, outputs in by_peer.items():
            _send(socket, peer, wire.Outputs(at=time.monotonic(), outputs=outputs))

    def _output(self, running: _Running) -> wire.Output | None:
        request = running.submit
        if self.script.error is not None:
            del self._running[request.id]
            return wire.Output(request.id, [], finish="error", error=self.script.error)
        if self.script.hold_after is not None and running.sent >= self.script.hold_after:
            return None
        token_id = next(running.answer, EOS_ID)
        running.sent += 1
        finish: wire.FinishReason | None = None
        if token_id == EOS_ID:
            finish = "stop"
        elif running.sent >= request.sampling.max_tokens:
            finish = "length"
        if finish is not None:
            del self._running[request.id]
        first = running.sent == 1
        asked = request.sampling
        following = request.prompt_ids[1:] if first and asked.prompt_logprobs is not None else []
        return wire.Output(
            request.id,
            [token_id],
            finish=finish,
            cached_tokens=self.script.cached_tokens if first else 0,
            scheduled_at=time.monotonic() if first else None,
            logprobs=[] if asked.logprobs is None else [_token_logprobs(token_id, asked.logprobs)],
            embedding=b"" if asked.pooling is None or not first else _EMBEDDING,
            prompt_logprobs=[_token_logprobs(id_, asked.prompt_logprobs or 0) for id_ in following],
        )

    def _beat(self, socket: zmq.Socket[bytes]) -> None:
        now = time.monotonic()
        if now < self._next_heartbeat or self.script.silent or not self._peers:
            return
        self._next_heartbeat = now + _HEARTBEAT_S
        steps, self.script.steps = self.script.steps, []
        message = wire.EngineTelemetry(now, self.script.load, a_step_model(), steps)
        for peer in self._peers:
            _send(socket, peer, message)

    def _change(self, change: wire.SetLimits) -> None:
        held = self._state
        if change.epoch < held.epoch:
            self._state = msgspec.structs.replace(held, call=change.call, error="old epoch")
            return
        expires_at = None if change.lease_s is None else time.monotonic() + change.lease_s
        requested = held.requested
        if change.epoch > held.epoch:
            names = [each.name for each in fields(limits.Limits)]
            given = {name: getattr(change, name) for name in names}
            given = {name: value for name, value in given.items() if value is not None}
            for name in ("step_target", "pace_tpot", "batch_step_target"):
                if getattr(change, f"clear_{name}"):
                    given[f"{name}_ms"] = None
            requested = replace(requested, **given)
        effective, clamped = limits.clamp(requested, CAPACITY)
        self._state = msgspec.structs.replace(
            held,
            call=change.call,
            requested=requested,
            effective=effective,
            certified=effective if change.certified else held.certified,
            epoch=change.epoch,
            lease_expires_at=expires_at,
            clamped=list(clamped),
            error=None,
        )


def _token_logprobs(token_id: int, num_top: int) -> wire.TokenLogprobs:
    """The token is the second likeliest, after the one before it in the vocabulary."""
    top_ids = [(token_id - 1 + place) % VOCAB_SIZE for place in range(num_top)]
    top_logprobs = [-0.5 - 0.25 * place for place in range(num_top)]
    return wire.TokenLogprobs(token_id, -0.75, 2, top_ids, top_logprobs)


def _send(socket: zmq.Socket[bytes], peer: bytes, message: wire.FromEngine) -> None:
    socket.send_multipart([peer, wire.encode(message)])


def _first_limits_state() -> wire.LimitsState:
    first = wire.Limits(64, 1024)
    return wire.LimitsState(
        call=0,
        requested=first,
        effective=first,
        certified=first,
        capacity=CAPACITY,
        epoch=1,
        since_step=0,
        lease_expires_at=None,
        lease_lost=False,
        clamped=[],
    )


if __name__ == "__main__":
    ScriptedEngine(Path(sys.argv[1])).serve_until_killed()
