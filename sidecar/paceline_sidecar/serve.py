"""Two uvicorn servers and the engine's connection in one event loop, until SIGTERM."""

import asyncio
import contextlib
import logging
import math
import resource
import signal
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from paceline_sidecar.app import create_admin_app, create_public_app, served
from paceline_sidecar.bounded_protocol import BoundedProtocol, ConnectionLimits, Doors
from paceline_sidecar.drain import drain
from paceline_sidecar.logs import report_fault
from paceline_sidecar.runtime_control import RuntimeControl
from paceline_sidecar.service import Service
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.tls import reload_certificate
from paceline_sidecar.tracing.trace import Tracing
from paceline_sidecar.zmq_engine import ZmqEngine

_log = logging.getLogger(__name__)

_BACKLOG = 2048
# The engine's socket, the certificates, the tokenizer, whatever the libraries open, and 256
# gateways that hear of the load (`load_stream.MAX_STREAMS`).
_OTHER_FILES = 512


class _Server(uvicorn.Server):
    """Bounds its connections, and leaves the process's signals to `serve`, which drains first."""

    def __init__(self, config: uvicorn.Config, doors: Doors) -> None:
        super().__init__(config)
        self._doors = doors

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; a TLS handshake gets the time of a request's head."""
        handshake_s = self._doors.limits.header_timeout_s if self.config.ssl else None
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._protocol,
                sock=listening,
                ssl=self.config.ssl,
                backlog=_BACKLOG,
                ssl_handshake_timeout=handshake_s,
            )
            for listening in sockets or []
        ]
        self.started = True

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(
            self._doors, config=self.config, server_state=self.server_state, app_state={}
        )


async def serve(
    settings: SidecarSettings,
    *,
    stop: asyncio.Event,
    sockets: list[socket.socket] | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Serve until `stop` is set, drain, leave; `sockets` may already listen, public one first."""
    asyncio.get_running_loop().set_exception_handler(report_fault)
    with _batch_dir(settings) as batch_dir:
        await _serve(settings, batch_dir, stop=stop, sockets=sockets, tracing=tracing)
    if tracing is not None:
        await tracing.close()


@contextlib.contextmanager
def _batch_dir(settings: SidecarSettings) -> Generator[Path, None, None]:
    """Give the folder of files and batches, for now where none is set."""
    if settings.batch_dir is not None:
        yield settings.batch_dir
    else:
        with tempfile.TemporaryDirectory(prefix="paceline-batches-") as folder:
            yield Path(folder)


async def _serve(
    settings: SidecarSettings,
    batch_dir: Path,
    *,
    stop: asyncio.Event,
    sockets: list[socket.socket] | None,
    tracing: Tracing | None,
) -> None:
    engine = ZmqEngine(settings.socket_path, heartbeat_s=settings.heartbeat_s)
    service = Service(engine, run_dir=settings.run_dir, served_name=settings.served_name)
    service.tracing = tracing
    control = RuntimeControl(service, settings.runtime_config_file)
    service.configure = control.configure
    engine.listen(service)
    engine.listen(control.log)
    engine.listen(service.adapters)
    public_app = create_public_app(service, settings, batch_dir=batch_dir)
    admin_app = create_admin_app(service, control, settings)
    refused = service.ledger.refused_connections
    public = _server(served(public_app, service), settings, refused, tls=True)
    admin = _server(served(admin_app, service), settings, refused, tls=settings.admin_tls)
    sockets = sockets or [
        _listen(settings.host, settings.port),
        _listen(settings.host, settings.admin_port),
    ]
    for listening in sockets:
        _give_up_on_who_does_not_read(listening, settings.write_timeout_s)
    _log.info("listening: public %s, admin %s", *(sock.getsockname()[1] for sock in sockets))
    async with _telling_load(settings, service, stop), asyncio.TaskGroup() as tasks:
        connection = tasks.create_task(engine.run())
        tasks.create_task(public.serve([sockets[0]]))
        tasks.create_task(admin.serve([sockets[1]]))
        keeper = tasks.create_task(service.adapters.run())
        chores = [tasks.create_task(chore()) for chore in service.chores]
        watchers = [
            tasks.create_task(reload_certificate(server.config, settings))
            for server in (public, admin)
        ]
        await stop.wait()
        await drain(service, lame_duck_s=settings.lame_duck_s, drain_s=settings.drain_s)
        public.should_exit = admin.should_exit = True
        connection.cancel()
        keeper.cancel()
        for task in (*watchers, *chores):
            task.cancel()


@contextlib.asynccontextmanager
async def _telling_load(
    settings: SidecarSettings, service: Service, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Tell gateways the load between answers, where the settings ask for it."""
    if settings.load_report_port is None or not settings.load_report:
        yield
        return
    from paceline_sidecar.load_stream import telling_load  # noqa: PLC0415 - 15 MB, when asked

    async with telling_load(settings, settings.load_report_port, service.load_news, stop):
        yield


def stop_on_signals(stop: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT drains; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()

    def once(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, once, number)


def allow_open_files(settings: SidecarSettings) -> None:
    """Raise this process's limit of open files to what all connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.max_connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _server(
    app: ASGIApp, settings: SidecarSettings, refused: Counter[str], *, tls: bool
) -> _Server:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.tls_cert_file if tls else None,
        ssl_keyfile=settings.tls_key_file if tls else None,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    limits = ConnectionLimits(
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        max_header_bytes=settings.max_header_bytes,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        max_unread_bytes=settings.max_unread_bytes,
    )
    return _Server(config, Doors(limits, refused))


def _give_up_on_who_does_not_read(listening: socket.socket, after_s: float) -> None:
    """Let the kernel close a connection whose client takes nothing for so long.

    Connections inherit it. A task that waits to write hears of nothing else, neither of a deadline
    nor of a drain (tcp(7), TCP_USER_TIMEOUT).
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        timeout_ms = math.ceil(after_s * 1e3)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
