"""A whole sidecar on loopback ports, in a thread of its own."""

import asyncio
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from paceline_sidecar.serve import serve
from paceline_sidecar.settings import Settings

TOKEN = "admin-token"


@dataclass(slots=True)
class Sidecar:
    """One that runs in a thread of its own."""

    settings: Settings
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event

    @property
    def url(self) -> str:
        """Of the public port."""
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def admin_url(self) -> str:
        """Of the admin port."""
        return f"http://127.0.0.1:{self.settings.admin_port}"

    @property
    def admin(self) -> httpx.Client:
        """A client that has the token."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=self.admin_url, headers=headers, timeout=30)

    @property
    def openai(self) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def ready(self) -> bool:
        """Whether it takes requests."""
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def leave(self) -> None:
        """As SIGTERM does."""
        self.loop.call_soon_threadsafe(self.stop.set)

    def join(self) -> None:
        """Wait for its end."""
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start_sidecar(run_dir: Path, **changes: Any) -> Sidecar:
    """Serve from `run_dir`; the engine may come later."""
    token_file = run_dir / "token"
    token_file.write_text(TOKEN)
    values: dict[str, Any] = {
        "run_dir": run_dir,
        "host": "127.0.0.1",
        "port": free_port(),
        "admin_port": free_port(),
        "runtime_token_file": token_file,
        "drain_s": 5.0,
    }
    settings = Settings(**{**values, **changes})
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve(settings, stop=stop))

    thread = threading.Thread(target=run, name="sidecar", daemon=True)
    thread.start()
    return Sidecar(settings, thread, loop, stop)
