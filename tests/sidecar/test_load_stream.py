"""What gateways are told of a pod's load between answers, by gRPC."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from paceline_sidecar.load_report import HEADER
from paceline_sidecar.load_stream import (
    DEFAULT_INTERVAL_S,
    MAX_INTERVAL_S,
    MAX_STREAMS,
    METHOD,
    MIN_INTERVAL_S,
    SERVICE,
    read_interval_s,
    telling_load,
)
from paceline_sidecar.orca_messages import LOAD_REPORT
from paceline_sidecar.settings import SidecarSettings
from paceline_testing.certificates import make_certificate, needs_openssl
from paceline_testing.free_port import free_port
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until

_WITHIN_S = 180.0
_COMPLETION = {"model": "scripted", "prompt": "Hi"}
Start = Callable[..., Sidecar]


def asked_every(interval_s: float) -> bytes:
    """Write an OrcaLoadReportRequest: its first field is a Duration."""
    duration = Duration()
    duration.FromNanoseconds(round(interval_s * 1e9))
    inner = duration.SerializeToString()
    return b"\x0a" + bytes([len(inner)]) + inner


@contextmanager
def reports(port: int, *, certificate: Path | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Ask as a gateway does; gives what comes."""
    address = f"localhost:{port}"
    if certificate is None:
        channel = grpc.insecure_channel(address)
    else:
        authority = grpc.ssl_channel_credentials(certificate.read_bytes())
        channel = grpc.secure_channel(address, authority)
    with channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{SERVICE}/{METHOD}"
        )
        stream = call(asked_every(0.1), timeout=_WITHIN_S, wait_for_ready=True)
        yield (MessageToDict(LOAD_REPORT.FromString(each)) for each in stream)


def weight_of(report: dict[str, Any]) -> float:
    """Return what Envoy makes of a report."""
    weight: float = report["rpsFractional"] / report["applicationUtilization"]
    return weight


@pytest.fixture
def pod(engine: ScriptedEngine, start: Start) -> Sidecar:
    """One that tells its load on a port of its own."""
    del engine
    sidecar = start(load_report_port=free_port())
    wait_until(sidecar.ready)
    return sidecar


def port_of(sidecar: Sidecar) -> int:
    port = sidecar.settings.load_report_port
    assert port is not None
    return port


def tell(sidecar: Sidecar, capacity_rps: float) -> None:
    """Have it take λ*, as the operator says it."""
    change = {"epoch": 1, "lease_s": 600, "capacity_rps": capacity_rps}
    assert sidecar.admin.patch("/runtime/limits", json=change).status_code == 200


def test_a_report_says_what_an_answer_says(pod: Sidecar) -> None:
    """By the same names, and the weight of Envoy is λ*, in hundredths."""
    tell(pod, 8.0)
    answer = json.loads(
        pod.public.post("/v1/completions", json=_COMPLETION).headers[HEADER].removeprefix("JSON ")
    )

    with reports(port_of(pod)) as told:
        report = next(told)

    assert report["namedMetrics"].keys() == answer["named_metrics"].keys()
    assert weight_of(report) == pytest.approx(800, rel=1e-3)


def test_reports_go_on_and_follow_the_load(pod: Sidecar) -> None:
    """Nobody sends a request meanwhile."""
    tell(pod, 8.0)
    with reports(port_of(pod)) as told:
        first = next(told)
        tell(pod, 4.0)

        assert any(weight_of(each) == pytest.approx(400, rel=1e-3) for each in islice(told, 1000))

    assert first["rpsFractional"]


def test_nothing_is_told_before_there_is_a_weight_to_tell(pod: Sidecar) -> None:
    """A new pod that nobody asked would else weigh next to nothing. A report comes with λ*."""
    with reports(port_of(pod)) as told:
        tell(pod, 8.0)
        first = next(told)

    assert weight_of(first) == pytest.approx(800, rel=1e-3)


def test_streams_end_before_the_last_answer(engine: ScriptedEngine, start: Start) -> None:
    """A pod that leaves ends them at once, without an error, and answers who still runs."""
    engine.script.hold_after = 1
    pod = start(load_report_port=free_port(), drain_s=600.0)
    wait_until(pod.ready)
    tell(pod, 8.0)
    with reports(port_of(pod)) as told, ThreadPoolExecutor(1) as pool:
        next(told)
        held = pool.submit(pod.public.post, "/v1/completions", json=_COMPLETION)
        wait_until(lambda: engine.running)

        pod.leave()
        list(told)
        assert pod.thread.is_alive()
        engine.script.hold_after = None
        assert held.result(_WITHIN_S).status_code == 200


def test_another_request_is_refused(pod: Sidecar) -> None:
    """What is no OrcaLoadReportRequest has no interval to read."""
    with grpc.insecure_channel(f"localhost:{port_of(pod)}") as channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{SERVICE}/{METHOD}"
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(call(b"\xff\xff", timeout=_WITHIN_S, wait_for_ready=True))

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("asked", "interval_s"),
    [
        (b"", DEFAULT_INTERVAL_S),
        (asked_every(0.5), 0.5),
        (asked_every(0.001), MIN_INTERVAL_S),
        (asked_every(1e6), MAX_INTERVAL_S),
    ],
    ids=["none", "half a second", "too often", "too seldom"],
)
def test_the_interval_is_the_askers_within_bounds(asked: bytes, interval_s: float) -> None:
    """Nobody can have a pod write reports without end."""
    assert read_interval_s(asked) == interval_s


def test_where_it_is_off_nobody_listens(engine: ScriptedEngine, start: Start) -> None:
    """The switch of reports in answers is that of the port, too."""
    del engine
    port = free_port()
    sidecar = start(load_report=False, load_report_port=port)
    wait_until(sidecar.ready)

    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}", timeout=_WITHIN_S)


async def test_a_port_that_is_taken_is_an_error() -> None:
    """Two pods on one port would each get some of the gateway's streams."""
    settings, port = SidecarSettings(host="127.0.0.1"), free_port()

    async with telling_load(settings, port, lambda: None, asyncio.Event()):
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{port}"):
            async with telling_load(settings, port, lambda: None, asyncio.Event()):
                pass


def test_nobody_holds_more_connections_than_there_is_room_for(
    engine: ScriptedEngine, start: Start
) -> None:
    """So that the API does not run out of files."""
    del engine
    pod = start(load_report_port=free_port(), header_timeout_s=600.0)
    wait_until(pod.ready)
    with ExitStack() as stack:
        held = connections(pod, MAX_STREAMS + 20, stack)
        wait_until(lambda: sum(map(is_closed, held)) >= 20)

        assert pod.public.post("/v1/completions", json=_COMPLETION).status_code == 200
        assert sum(map(is_closed, held)) == 20


def test_who_says_nothing_is_closed(engine: ScriptedEngine, start: Start) -> None:
    """After the time for a request's head, so that there is room again for a gateway."""
    del engine
    pod = start(load_report_port=free_port(), header_timeout_s=1.0)
    wait_until(pod.ready)
    with ExitStack() as stack:
        held = connections(pod, MAX_STREAMS, stack)

        wait_until(lambda: all(map(is_closed, held)))


def test_a_long_request_is_not_held(pod: Sidecar) -> None:
    """An interval takes a few bytes, and a stream lasts: its request would, too."""
    with grpc.insecure_channel(f"localhost:{port_of(pod)}") as channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{SERVICE}/{METHOD}"
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(call(asked_every(0.1) + bytes(1_000_000), timeout=_WITHIN_S, wait_for_ready=True))

    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def connections(pod: Sidecar, count: int, stack: ExitStack) -> list[socket.socket]:
    """Open so many, and say nothing."""
    address = ("127.0.0.1", port_of(pod))
    return [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; what it said before is passed over."""
    connection.setblocking(False)
    try:
        while connection.recv(1024):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@needs_openssl
def test_with_a_certificate_it_speaks_tls_and_takes_a_new_one(
    engine: ScriptedEngine, start: Start, tmp_path: Path
) -> None:
    """As the public port does: a gateway speaks TLS to both, or to neither."""
    del engine
    certificate, key = make_certificate(tmp_path, "chat")
    pod = start(tls_cert_file=certificate, tls_key_file=key, load_report_port=free_port())
    wait_until(lambda: pod.admin.get("/health/ready").is_success)
    tell(pod, 8.0)
    with reports(port_of(pod), certificate=certificate) as told:
        assert next(told)["rpsFractional"]

    make_certificate(tmp_path, "chat")
    with reports(port_of(pod), certificate=certificate) as told:
        assert next(told)["rpsFractional"]
