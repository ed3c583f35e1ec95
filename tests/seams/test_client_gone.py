"""A client that is gone at any point of the exchange: its blocks are free within two steps.

A real engine behind the real wire and a real sidecar. The engine's steps are let through one by
one, so they can be counted.
"""

import itertools
import json
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.engine.engine import Engine
from paceline_engine.grammar.grammar import Grammars
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.process.ipc import Link, Stop
from paceline_engine.process.worker import Worker, WorkerSettings
from paceline_testing.byte_tokenizer import VOCAB_SIZE, byte_tokenizer, write_tokenizer
from paceline_testing.fake_engine import FAKE_CAPACITY, FAKE_MODEL
from paceline_testing.fake_runner import FakeRunner, continuation
from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.waiting import wait_until
from paceline_wire.limits import Limits

DEADLINE_S = 60.0
_MOST_STEPS = 1_000_000
_TOKENS = 4
_STRIDE = 9
"""Bytes between two places of an answer; odd, so that at each event some close and some reset."""
_SPARE = 32
"""Bytes by which one answer may be shorter than another: a header says how long it took, and
events that the sidecar reads together share a chunk."""


def _prompt() -> str:
    """Return one whose answer is plain letters: each of its tokens is an event of its own."""
    tokenizer = byte_tokenizer()
    for number in itertools.count():
        prompt = f"Hi {number}"
        ids = continuation(tokenizer.encode(prompt).ids, _TOKENS, VOCAB_SIZE)
        text = tokenizer.decode(ids)
        if len(text) == _TOKENS and text.isascii() and text.isprintable():
            return prompt
    raise AssertionError


_PROMPT = _prompt()


class SteppedEngine:
    """Its steps wait until they are let through."""

    def __init__(self, run_dir: Path) -> None:
        write_tokenizer(run_dir)
        self.steps = 0
        """Let through; the engine's own count rises a moment after its last request is gone."""
        self._allowed = _MOST_STEPS
        self._is_waiting = False
        self._changed = threading.Condition()
        runner = FakeRunner(FAKE_CAPACITY, VOCAB_SIZE)
        runner.before_run = self._wait
        info = msgspec.structs.replace(FAKE_MODEL, vocab_size=VOCAB_SIZE)
        limits = Limits(FAKE_CAPACITY.max_batch_size, FAKE_CAPACITY.max_token_budget)
        self.engine = Engine(
            runner, info, FAKE_CAPACITY, NoPacer(), limits=limits, clock=time.monotonic
        )
        self._link = Link(run_dir, time.monotonic)
        worker = Worker(
            self.engine,
            self._link,
            WorkerSettings("stepped", info, drain_s=0.0),
            grammars=Grammars(run_dir / "tokenizer.json", vocab_size=VOCAB_SIZE, eos_token_ids=[]),
            watch=nullcontext(),
            fetch=Path,
        )
        self._thread = threading.Thread(target=worker.run, name="stepped-engine", daemon=True)
        self._thread.start()

    @property
    def used_blocks(self) -> int:
        return self.engine.requests.blocks.pool.num_used

    @property
    def has_begun(self) -> bool:
        """Whether a request is in a step that waits."""
        return self._is_waiting

    @property
    def has_mail(self) -> bool:
        """Whether it has been told something that it has not heard."""
        return not self._link.inbox.empty()

    def let(self, more: int) -> None:
        """Let so many steps through, from those that have run."""
        with self._changed:
            self._allowed = self.steps + more
            self._changed.notify_all()

    def close(self) -> None:
        self.let(_MOST_STEPS)
        self._link.inbox.put(Stop())
        self._thread.join(DEADLINE_S)
        self._link.close()

    def _wait(self, _batch: Batch) -> None:
        with self._changed:
            self._is_waiting = self.steps >= self._allowed
            assert self._changed.wait_for(lambda: self.steps < self._allowed, DEADLINE_S)
            self._is_waiting = False
            self.steps += 1


@pytest.fixture(scope="module")
def run_dir() -> Iterator[Path]:
    """Short: the path of a Unix socket may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="pl-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def engine(run_dir: Path) -> Iterator[SteppedEngine]:
    engine = SteppedEngine(run_dir)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def sidecar(run_dir: Path, engine: SteppedEngine) -> Iterator[Sidecar]:
    del engine
    sidecar = start_sidecar(run_dir)
    wait_until(sidecar.ready)
    yield sidecar
    sidecar.leave()
    sidecar.join()


def request_bytes(*, stream: bool) -> bytes:
    body = {"model": "fake", "prompt": _PROMPT, "max_tokens": _TOKENS, "stream": stream}
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def connect(sidecar: Sidecar) -> socket.socket:
    return socket.create_connection(("127.0.0.1", sidecar.settings.port), timeout=DEADLINE_S)


def leave_politely(connection: socket.socket) -> None:
    connection.close()


def leave_abruptly(connection: socket.socket) -> None:
    """By a reset, as the kernel of a killed machine's successor answers."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


Leave = Callable[[socket.socket], None]
LEAVES = pytest.mark.parametrize("leave", [leave_politely, leave_abruptly], ids=["FIN", "RST"])


def is_empty(engine: SteppedEngine) -> bool:
    return engine.engine.is_idle and engine.used_blocks == 0


def assert_serves(sidecar: Sidecar, engine: SteppedEngine) -> None:
    wait_until(lambda: in_flight(sidecar) == 0, within_s=DEADLINE_S)
    engine.let(_MOST_STEPS)
    done = sidecar.openai.completions.create(model="fake", prompt="Hi", max_tokens=_TOKENS)
    assert done.usage is not None
    assert done.usage.completion_tokens == _TOKENS
    wait_until(lambda: is_empty(engine))


def in_flight(sidecar: Sidecar) -> float:
    text = sidecar.public.get("/metrics").text
    (line,) = [row for row in text.splitlines() if row.startswith("paceline_in_flight_requests{")]
    return float(line.rpartition(" ")[2])


def bytes_by_step(sidecar: Sidecar, engine: SteppedEngine) -> list[int]:
    """How long a streamed answer is after each step but the last."""
    engine.let(0)
    with connect(sidecar) as connection:
        connection.sendall(request_bytes(stream=True))
        wait_until(lambda: engine.has_begun)
        got, ends = b"", []
        for events in range(1, _TOKENS):
            engine.let(1)
            while got.count(b"data: ") < events or not got.endswith(b"\n\n\r\n"):
                got += connection.recv(65536)
            ends.append(len(got))
    engine.let(2)
    wait_until(lambda: is_empty(engine))
    return ends


def read(connection: socket.socket, length: int) -> None:
    while length > 0:
        piece = connection.recv(length)
        assert piece
        length -= len(piece)


def leaves_in_mid_answer(
    sidecar: Sidecar, engine: SteppedEngine, leave: Leave, *, stream: bool, steps: int, length: int
) -> None:
    """Leave after so many steps and bytes, and look at the engine two steps later."""
    engine.let(steps)
    began = engine.steps
    connection = connect(sidecar)
    connection.sendall(request_bytes(stream=stream))
    wait_until(lambda: engine.steps == began + steps and engine.has_begun)
    read(connection, length)
    leave(connection)
    wait_until(lambda: engine.has_mail)

    engine.let(2)

    wait_until(lambda: engine.steps == began + steps + 2 or engine.engine.is_idle)
    wait_until(lambda: is_empty(engine))
    assert engine.steps <= began + steps + 2


@LEAVES
def test_gone_at_every_byte_of_the_request(
    sidecar: Sidecar, engine: SteppedEngine, leave: Leave
) -> None:
    """Nothing of an incomplete request reaches the engine, and nobody waits for the rest."""
    whole = request_bytes(stream=True)
    steps = engine.steps

    for length in range(len(whole)):
        connection = connect(sidecar)
        connection.sendall(whole[:length])
        leave(connection)

    assert_serves(sidecar, engine)
    assert engine.steps == steps + _TOKENS


def test_gone_all_along_a_stream(sidecar: Sidecar, engine: SteppedEngine) -> None:
    """Up to the last event that the engine has a part in; closed and reset in turns."""
    after_step = bytes_by_step(sidecar, engine)

    for length in range(0, after_step[-1] - _SPARE, _STRIDE):
        leave = (leave_politely, leave_abruptly)[length % 2]
        enough = length + _SPARE
        steps = next(number for number, there in enumerate(after_step, 1) if enough <= there)
        leaves_in_mid_answer(sidecar, engine, leave, stream=True, steps=steps, length=length)

    assert_serves(sidecar, engine)


@LEAVES
def test_gone_at_every_step_of_a_whole_answer(
    sidecar: Sidecar, engine: SteppedEngine, leave: Leave
) -> None:
    """Its bytes come after the last step, when it holds no block any more."""
    for steps in range(_TOKENS):
        leaves_in_mid_answer(sidecar, engine, leave, stream=False, steps=steps, length=0)

    assert_serves(sidecar, engine)


@LEAVES
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_gone_while_the_finished_answer_is_sent(
    sidecar: Sidecar, engine: SteppedEngine, leave: Leave, stream: bool
) -> None:
    """The engine has done its part; the sidecar must not keep the rest."""
    engine.let(_MOST_STEPS)

    for length in range(0, 200, _STRIDE):
        connection = connect(sidecar)
        connection.sendall(request_bytes(stream=stream))
        read(connection, length)
        leave(connection)

    wait_until(lambda: is_empty(engine), within_s=DEADLINE_S)
    assert_serves(sidecar, engine)
