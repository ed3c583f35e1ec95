"""The engine's end of the socket, without an engine behind it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import zmq

from paceline_engine.errors import BadSettings
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.process.ipc import FromLink, Link, LinkBroken, PeerLost
from paceline_testing.engines import EngineUnderTest, a_submit
from paceline_wire import (
    Abort,
    EngineTelemetry,
    FromEngine,
    Hello,
    Loading,
    ToEngine,
    decode_from_engine,
    encode,
)

DEADLINE_MS = 60_000


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    """A bound socket and its thread."""
    link = Link(tmp_path, time.monotonic)
    yield link
    link.close()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], "zmq.Socket[bytes]"]]:
    """Make peers that have not said anything yet."""
    context = zmq.Context()
    peers: list[zmq.Socket[bytes]] = []

    def connect() -> "zmq.Socket[bytes]":
        peer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        peers.append(peer)
        peer.connect(f"ipc://{tmp_path / 'engine.sock'}")
        return peer

    yield connect
    for peer in peers:
        peer.close(linger=0)
    context.term()


def tell(peer: "zmq.Socket[bytes]", message: ToEngine) -> None:
    peer.send(encode(message))


def hear(peer: "zmq.Socket[bytes]") -> FromEngine:
    assert peer.poll(DEADLINE_MS)
    message: FromEngine = decode_from_engine(peer.recv())
    return message


def some_telemetry() -> EngineTelemetry:
    """One step was run since the last."""
    under_test = EngineUnderTest()
    under_test.submit(a_submit())
    under_test.step()
    engine = under_test.engine
    info, steps = NoPacer().info(), engine.log.take()
    return EngineTelemetry(at=1.0, load=engine.load(), model=info, steps=steps)


def test_hello_is_answered_before_anything_is_loaded(
    link: Link, connect: Callable[[], "zmq.Socket[bytes]"]
) -> None:
    """And later ones by what was last greeted with."""
    peer = connect()

    tell(peer, Hello())
    first = hear(peer)
    link.renew_greeting(Loading("weights", 0.5))
    tell(peer, Hello())

    assert first == Loading("start", 0.0)
    assert hear(peer) == Loading("weights", 0.5)


def test_only_who_said_hello_is_listened_to(
    link: Link, connect: Callable[[], "zmq.Socket[bytes]"]
) -> None:
    """Outputs go to one peer: another's requests would be answered to it."""
    peer, stranger = connect(), connect()
    tell(peer, Hello())
    hear(peer)

    tell(stranger, Abort(["stranger's"]))
    tell(stranger, Hello())
    hear(stranger)
    tell(stranger, Abort(["peer's"]))

    assert link.inbox.get(timeout=60) == PeerLost()
    assert link.inbox.get(timeout=60) == Abort(["peer's"])


def test_a_peer_that_has_gone_is_noticed(
    link: Link, connect: Callable[[], "zmq.Socket[bytes]"]
) -> None:
    """Its requests must not run for nobody; the next heartbeat finds out."""
    peer = connect()
    tell(peer, Hello())
    hear(peer)
    link.send(some_telemetry())

    peer.close(linger=0)

    assert link.inbox.get(timeout=60) == PeerLost()


def test_the_heart_beats_while_the_step_loop_is_busy(
    link: Link, connect: Callable[[], "zmq.Socket[bytes]"]
) -> None:
    """A long step is not a dead engine. Step records are told once."""
    peer = connect()
    tell(peer, Hello())
    hear(peer)

    link.send(some_telemetry())
    beats = [hear(peer) for _ in range(3)]

    assert [len(beat.steps) for beat in beats if isinstance(beat, EngineTelemetry)] == [1, 0, 0]


def test_a_broken_thread_is_told_to_the_step_loop(
    link: Link, connect: Callable[[], "zmq.Socket[bytes]"]
) -> None:
    """An engine that nobody can hear must not go on."""
    peer = connect()
    tell(peer, Hello())
    hear(peer)

    link.send(cast("Any", object()))

    assert link.inbox.get(timeout=60) == LinkBroken()
    link.send(some_telemetry())  # and whoever still speaks does not wait for ever


def test_a_run_directory_with_too_long_a_path_is_refused(tmp_path: Path) -> None:
    """Unix sockets have short names; ZeroMQ's own words would not tell which setting it is."""
    with pytest.raises(BadSettings, match=r"PACELINE_ENGINE_RUN_DIR: .* at most 107 bytes"):
        Link(tmp_path / ("x" * 120), time.monotonic)


def test_a_run_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """In a sentence that names the setting."""
    with pytest.raises(BadSettings, match="PACELINE_ENGINE_RUN_DIR: cannot bind"):
        Link(tmp_path / "nowhere", time.monotonic)


def test_the_step_loop_may_be_handed_every_message_of_the_sidecar() -> None:
    """`Hello` alone is answered by the socket's thread; all the others go through the inbox."""
    assert set(get_args(ToEngine)) - {Hello} <= set(get_args(FromLink))
