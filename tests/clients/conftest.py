"""The embedded model behind a real sidecar, for clients that are as their makers ship them.

Clients run in `.venv-clients`, engine and sidecar in `.venv` (`make clients`).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from paceline_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
_START_S = 300.0


_CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPUS, CLIENT_CPUS = _CPUS[:-1] or _CPUS, _CPUS[-1:]
"""Clients that measure have a CPU of their own: some are processes that keep one busy."""


def pinned(cpus: list[int]) -> list[str]:
    """Begin a command that runs on these CPUs alone."""
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served."""

    url: str
    model: str
    run_dir: Path
    """The folder with the model's tokenizer."""


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One for all clients."""
    python = os.environ.get("PACELINE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    run_dir = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    ports = [_free_port(), _free_port()]
    settings = {
        "PACELINE_ENGINE_RUN_DIR": str(run_dir),
        "PACELINE_ENGINE_DEVICE": "cpu",
        "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "termination-log"),
        "PACELINE_SIDECAR_RUN_DIR": str(run_dir),
        "PACELINE_SIDECAR_HOST": "127.0.0.1",
        "PACELINE_SIDECAR_PORT": str(ports[0]),
        "PACELINE_SIDECAR_ADMIN_PORT": str(ports[1]),
    }
    url = f"http://127.0.0.1:{ports[0]}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, run_dir)
        for part in ("paceline_engine", "paceline_sidecar"):
            command = [*pinned(SERVER_CPUS), python, "-m", part]
            process = subprocess.Popen(command, env={**os.environ, **settings})
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_until(lambda: _is_ready(url), within_s=_START_S)
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        yield Served(url, model, run_dir)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
