"""Reports a pod's load to gateways between answers, by gRPC: ORCA's out-of-band reports.

A gateway that balances by reports opens one stream to each pod, and hears of its load at an
interval of its own choice. So it hears of a pod that gets few requests, too, and of one whose
answers last for minutes: the report in an answer's header is of the time when the answer began.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from paceline_sidecar.load_report import Load
from paceline_sidecar.orca_messages import LOAD_REPORT, LOAD_REPORT_REQUEST
from paceline_sidecar.settings import SidecarSettings

SERVICE: Final = "xds.service.orca.v3.OpenRcaService"
METHOD: Final = "StreamCoreMetrics"
MIN_INTERVAL_S: Final = 0.1
"""Envoy takes new weights no faster."""
MAX_INTERVAL_S: Final = 60.0
DEFAULT_INTERVAL_S: Final = 1.0
"""Between the reports for a request that names no interval."""
MAX_STREAMS: Final = 256
"""Connections, and streams, at once; an Envoy has one for each of its clusters with this pod."""
_MAX_REQUEST_BYTES: Final = 4096

_log = logging.getLogger(__name__)


@asynccontextmanager
async def telling_load(
    settings: SidecarSettings, port: int, load: Callable[[], Load | None], stop: asyncio.Event
) -> AsyncIterator[None]:
    """Answer gateways on this port until the end of the block.

    No report is sent while `load` gives none. Streams end at `stop`, so that a pod that leaves has
    no caller who waits for its reports.
    Raises RuntimeError, which names the address, where the port is taken.
    """
    server = grpc.aio.server(maximum_concurrent_rpcs=MAX_STREAMS, options=_bounds(settings))
    server.add_generic_rpc_handlers((_service(load, stop),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    credentials = _credentials(settings)
    if credentials is None:
        server.add_insecure_port(f"{host}:{port}")
    else:
        server.add_secure_port(f"{host}:{port}", credentials)
    await server.start()
    _log.info("telling gateways the load on port %d", port)
    try:
        yield
    finally:
        await server.stop(grace=None)


def _bounds(settings: SidecarSettings) -> list[tuple[str, int]]:
    """Bound what callers can hold: files are few, and the API's connections need them, too."""
    return [
        ("grpc.so_reuseport", 0),  # unless told so, gRPC shares a port that another server has
        ("grpc.max_allowed_incoming_connections", MAX_STREAMS),
        ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
        ("grpc.server_handshake_timeout_ms", round(settings.header_timeout_s * 1e3)),
        ("grpc.max_connection_idle_ms", round(settings.keep_alive_s * 1e3)),
    ]


def _service(load: Callable[[], Load | None], stop: asyncio.Event) -> grpc.GenericRpcHandler:
    newest = _Newest(load, asyncio.get_running_loop().time)

    async def stream(
        request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        try:
            interval_s = read_interval_s(request)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the request is not an OrcaLoadReportRequest"
            )
        while not stop.is_set():
            if (report := newest.report()) is not None:
                yield report
            try:
                await asyncio.wait_for(stop.wait(), interval_s)
            except TimeoutError:
                continue

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


@dataclass(slots=True)
class _Newest:
    """The newest report, written once for all streams that ask at about the same time."""

    load: Callable[[], Load | None]
    clock: Callable[[], float]
    _report: bytes | None = None
    _written_at: float = -math.inf

    def report(self) -> bytes | None:
        """Return it; None while there is nothing to tell."""
        if (now := self.clock()) - self._written_at >= MIN_INTERVAL_S / 2:
            load = self.load()
            self._report = None if load is None else write_report(load)
            self._written_at = now
        return self._report


def read_interval_s(request: bytes) -> float:
    """Return how far apart the reports are to be, in seconds; raises DecodeError."""
    asked: Any = LOAD_REPORT_REQUEST.FromString(request)
    if not asked.HasField("report_interval"):
        return DEFAULT_INTERVAL_S
    asked_s: float = asked.report_interval.seconds + asked.report_interval.nanos / 1e9
    return min(max(asked_s, MIN_INTERVAL_S), MAX_INTERVAL_S)


def write_report(load: Load) -> bytes:
    """Write an OrcaLoadReport that says what an answer's header says."""
    report = LOAD_REPORT(**load.totals(), named_metrics=load.named_metrics())
    return report.SerializeToString()


def _credentials(settings: SidecarSettings) -> grpc.ServerCredentials | None:
    """Return the public port's certificate, read anew for each handshake; None without TLS."""
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None or key is None:
        return None

    def found() -> Any:  # None keeps what there was, which the stubs do not know
        try:
            return _pair(certificate, key)
        except OSError as problem:
            _log.warning("the certificate cannot be read (%s); the old one stays", problem)
            return None

    return grpc.dynamic_ssl_server_credentials(_pair(certificate, key), found)


def _pair(certificate: Path, key: Path) -> grpc.ServerCertificateConfiguration:
    pair = (key.read_bytes(), certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair])
