"""A whole sidecar on loopback ports, in a thread of its own."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import uvloop
from openai import OpenAI

from paceline_sidecar.serve import serve
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.tracing.trace import Tracing
from paceline_testing.kept_secrets import listen, remember, remember_request

TOKEN = "a-runtime-token-of-tests"


class Sidecar:
    """One that runs in a thread of its own, and the clients that tests ask it with."""

    def __init__(
        self,
        settings: SidecarSettings,
        sockets: list[socket.socket],
        tracing: Tracing | None = None,
    ) -> None:
        self.tracing = tracing
        self.settings = settings
        self.sockets = sockets
        self._loop = uvloop.new_event_loop()  # as in a process of its own
        self._stop = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="sidecar", daemon=True)
        headers = {"authorization": f"Bearer {TOKEN}"}
        hooks = {"request": [remember_request]}
        self.admin = httpx.Client(base_url=self.admin_url, headers=headers, timeout=30)
        """A client of the admin port that has the token."""
        self.public = httpx.Client(base_url=self.url, timeout=30, event_hooks=hooks)
        """A plain client of the public port."""
        self.openai = OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.Client(timeout=30, event_hooks=hooks),
        )
        """The official client."""

    @property
    def url(self) -> str:
        """The base URL of the public port."""
        return f"http://{self.settings.host}:{self.settings.port}"

    @property
    def admin_url(self) -> str:
        """The base URL of the admin port."""
        return f"http://{self.settings.host}:{self.settings.admin_port}"

    def live(self) -> bool:
        """Whether it answers."""
        return self._is_ok("/health/live")

    def ready(self) -> bool:
        """Whether it takes requests."""
        return self._is_ok("/health/ready")

    def _is_ok(self, path: str) -> bool:
        try:
            return self.public.get(path).status_code == 200
        except httpx.TransportError:
            return False

    def leave(self) -> None:
        """As SIGTERM does."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Wait for its end."""
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()
        for client in (self.admin, self.public, self.openai):
            client.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        await serve(self.settings, stop=self._stop, sockets=self.sockets, tracing=self.tracing)


def start_sidecar(run_dir: Path, tracing: Tracing | None = None, **changes: Any) -> Sidecar:
    """Serve from `run_dir`; the engine may come later."""
    # Bound before anybody is told the port: nobody else can take it meanwhile.
    host = changes.get("host", "127.0.0.1")
    sockets = [socket.create_server((host, 0)) for _ in range(2)]
    token_file = run_dir / "token"
    token_file.write_text(TOKEN)
    remember(TOKEN)
    listen()
    values: dict[str, Any] = {
        "run_dir": run_dir,
        "host": host,
        "port": sockets[0].getsockname()[1],
        "admin_port": sockets[1].getsockname()[1],
        "runtime_token_file": token_file,
        "drain_s": 5.0,
        "lame_duck_s": 0.0,
    }
    sidecar = Sidecar(SidecarSettings(**{**values, **changes}), sockets, tracing)
    sidecar.thread.start()
    return sidecar
