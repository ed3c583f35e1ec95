"""One plain decode, from the message that submits its request to the one that carries its token.

`docs/architecture.md` lists the files on its path, and the list is what really runs: a tracer walks
the decodes of a small model on a CPU, as `paceline up` serves it there.
"""

import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest
import zmq

import paceline_engine
import paceline_kernels
import paceline_wire
from paceline_engine.engine.engine import Engine
from paceline_engine.grammar.grammar import Grammars
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.process.ipc import SOCKET_NAME, Link, Stop
from paceline_engine.process.worker import Worker, WorkerSettings
from paceline_engine.settings import Settings
from paceline_kernels.cpu import native_ops
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import (
    FromEngine,
    Hello,
    Outputs,
    Ready,
    Sampling,
    Submit,
    decode_from_engine,
    encode,
)
from paceline_wire.limits import Limits

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST_FILES = 30
PACKAGES = {Path(each.__path__[0]) for each in (paceline_engine, paceline_wire, paceline_kernels)}
FIRST_STEP, LAST_STEP, MAX_TOKENS = 4, 14, 24
"""Which steps of one request are traced; in blocks of 4 some of their tokens begin a block."""
DEADLINE_MS = 60_000


@dataclass
class Tracer:
    """Notes the files of our packages whose functions are called.

    It counts the steps itself, in the thread that runs them: a thread that reads the outputs may
    be so late that the request has ended.
    """

    roots: tuple[CodeType, ...] = ()
    """Functions that are traced with all that they call, also outside the traced steps."""
    files: set[Path] = field(default_factory=set)
    num_steps: int = 0
    _open: dict[int, FrameType] = field(default_factory=dict)
    """By thread, the call of a root that has not returned."""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        thread = threading.get_ident()
        if event == "call":
            if frame.f_code is Engine.step.__code__:
                self.num_steps += 1
            if frame.f_code in self.roots:
                self._open.setdefault(thread, frame)
            if FIRST_STEP <= self.num_steps < LAST_STEP or thread in self._open:
                self._note(Path(frame.f_code.co_filename))
        elif event == "return" and self._open.get(thread) is frame:
            del self._open[thread]

    def _note(self, path: Path) -> None:
        # A package's face only passes names on.
        if path.name != "__init__.py" and not PACKAGES.isdisjoint(path.parents):
            self.files.add(path)


@dataclass(frozen=True)
class Peer:
    """The sidecar's end of the socket."""

    socket: "zmq.Socket[bytes]"

    def send(self, message: Hello | Submit) -> None:
        self.socket.send(encode(message))

    def receive(self, kind: type[FromEngine]) -> FromEngine:
        """The next message of a kind."""
        while True:
            assert self.socket.poll(DEADLINE_MS), f"no {kind} came"
            message = decode_from_engine(self.socket.recv())
            if isinstance(message, kind):
                return message


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model whose heads the compiled attention serves, as it does those of real models."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 22,
        block_size=4,
    )
    return load_model(settings, lambda _stage, _fraction: None)


@contextmanager
def served(loaded: LoadedModel, run_dir: Path, tracer: Tracer) -> Iterator[Peer]:
    """Serve the model in threads that the tracer sees, on a clock by which no telemetry is due."""
    clock: Callable[[], float] = ManualClock()
    threading.setprofile(tracer)
    link = Link(run_dir, clock)
    capacity = loaded.capacity
    worker = Worker(
        Engine(
            loaded.runner,
            loaded.info,
            capacity,
            make_pacer(loaded.info, capacity),
            limits=Limits(capacity.max_batch_size, capacity.max_token_budget),
            clock=time.monotonic,
        ),
        link,
        WorkerSettings("instance", loaded.info, drain_s=0.0),
        grammars=Grammars(run_dir / "tokenizer.json", vocab_size=300, eos_token_ids=[2]),
        watch=nullcontext(),
        fetch=Path,
        clock=clock,
    )
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    threading.setprofile(None)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"ipc://{run_dir / SOCKET_NAME}")
        try:
            yield Peer(socket)
        finally:
            link.inbox.put(Stop())
            thread.join(DEADLINE_MS / 1e3)
            link.close()


@contextmanager
def without_collections() -> Iterator[None]:
    """A garbage collection calls the engine back, and belongs to no step."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def files(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    """The files of a plain decode: its request's way into the queue, then steps of decodes."""
    tracer = Tracer()
    with served(loaded, tmp_path_factory.mktemp("run"), tracer) as peer:
        peer.send(Hello())
        peer.receive(Ready)
        tracer.roots = (Link._receive.__code__, Worker._handle.__code__)
        with without_collections():
            peer.send(Submit("a", [5, 6, 7, 8, 9], Sampling(MAX_TOKENS, ignore_eos=True)))
            for _ in range(MAX_TOKENS):
                peer.receive(Outputs)
    messages = {Path(sys.modules[each.__module__].__file__ or "") for each in (Submit, Outputs)}
    return tracer.files | messages


def listed_files() -> list[Path]:
    """The files that the page lists, in its order."""
    section = PAGE.read_text().split("\n## One plain decode\n")[1].split("\n## ")[0]
    return [ROOT / path for path in re.findall(r"^\d+\. `([^`]+\.py)`", section, re.MULTILINE)]


@pytest.mark.skipif(native_ops() is None, reason="without a C compiler the path is another")
def test_the_page_lists_the_files_of_one_plain_decode(files: set[Path]) -> None:
    """Whoever reads them in order has read the whole way of a token."""
    listed = listed_files()

    assert {str(each.relative_to(ROOT)) for each in files} == {
        str(each.relative_to(ROOT)) for each in listed
    }
    assert len(listed) == len(set(listed))


def test_one_plain_decode_can_be_read_in_one_sitting() -> None:
    """Each file more is one more that every reader of a step must open."""
    assert len(listed_files()) <= MOST_FILES
