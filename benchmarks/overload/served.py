"""The embedded model behind a real engine and a real sidecar on this machine, as a pod runs them.

Both are kept running as `paceline up` keeps them: started again after a growing pause.
"""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import httpx

from overload.asking import MODEL
from paceline_cli.up.child import ChildExit, Program, kept_running, python_module

Part = Literal["engine", "sidecar"]
TTFT_S: Final = 5.0
"""The target of the first token: what cannot have it is refused."""
BATCH: Final = 16
_START_S = 300.0
_SAMPLE = re.compile(r"^([a-z_:]+)(?:\{[^\n]*\})? ([-+.0-9eE]+)$", re.MULTILINE)
_ENGINE: Final = {
    "PACELINE_ENGINE_MODEL_URI": "builtin://smollm2-135m-instruct",
    "PACELINE_ENGINE_DEVICE": "cpu",
    "PACELINE_ENGINE_DTYPE": "float32",
    # The other core is for the sidecar and the clients: they would take it from the engine.
    "PACELINE_ENGINE_THREADS": "1",
    "PACELINE_ENGINE_MAX_BATCH_SIZE": str(BATCH),
    "PACELINE_ENGINE_MAX_TOKEN_BUDGET": "256",
    "PACELINE_ENGINE_MAX_MODEL_LEN": "1024",
    "PACELINE_ENGINE_KV_CACHE_BYTES": str(512 * 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class Served:
    """The two processes, as they are now."""

    run_dir: Path
    port: int
    admin_port: int
    token: str
    """What the runtime API asks for."""

    async def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            async with httpx.AsyncClient(timeout=10.0) as client:
                answer = await client.get(f"http://127.0.0.1:{self.port}/health/ready")
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    async def until_ready(self) -> float:
        """Wait for it; return how long it took. Raises `TimeoutError`."""
        began_at = time.monotonic()
        async with asyncio.timeout(_START_S):
            while not await self.is_ready():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
        return time.monotonic() - began_at

    async def metrics(self) -> dict[str, float]:
        """Return the sum over labels of each metric."""
        async with httpx.AsyncClient(timeout=30.0) as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        found: dict[str, float] = {}
        for name, value in _SAMPLE.findall(text):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def pid(self, part: Part) -> int:
        """Return the process of a part. Raises `LookupError` while there is none."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            is_part = f"paceline_{part}".encode() in command
            if is_part and str(self.run_dir).encode() in environment:
                return int(folder.name)
        raise LookupError(part)

    def memory_mib(self, part: Part) -> float:
        """Return its resident memory; 0 while it is away."""
        try:
            pages = int(Path(f"/proc/{self.pid(part)}/statm").read_text().split()[1])
        except (OSError, LookupError):
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def kill(self, part: Part) -> float:
        """As a kernel without memory does; return when."""
        pid = self.pid(part)  # a look at every process takes a while
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return killed_at


@asynccontextmanager
async def served(
    out: Path, *, ttft_s: float = TTFT_S, engine_settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Served]:
    """Serve until the block is left; logs go to `out`, settings add to those of every run."""
    with tempfile.TemporaryDirectory(prefix="pl-") as folder:
        run_dir = Path(folder)  # short: the path of a Unix socket may have 107 bytes
        (run_dir / "runtime.json").write_text(json.dumps({"sla": {"ttft_p99_ms": ttft_s * 1e3}}))
        service = Served(run_dir, _free_port(), _free_port(), secrets.token_hex(16))
        (run_dir / "token").write_text(service.token)
        sidecar = {
            "PACELINE_SIDECAR_RUN_DIR": folder,
            "PACELINE_SIDECAR_HOST": "127.0.0.1",
            "PACELINE_SIDECAR_PORT": str(service.port),
            "PACELINE_SIDECAR_ADMIN_PORT": str(service.admin_port),
            "PACELINE_SIDECAR_SERVED_NAME": MODEL,
            "PACELINE_SIDECAR_RUNTIME_TOKEN_FILE": f"{folder}/token",
            "PACELINE_SIDECAR_RUNTIME_CONFIG_FILE": f"{folder}/runtime.json",
        }
        engine = {
            **_ENGINE,
            **engine_settings,
            "PACELINE_ENGINE_RUN_DIR": folder,
            "PACELINE_ENGINE_TERMINATION_LOG": f"{folder}/termination-log",
        }
        async with AsyncExitStack() as stack:
            for part, settings in (("engine", engine), ("sidecar", sidecar)):
                argv = python_module(f"paceline_{part}")
                program = Program(part, argv, settings, out / f"{part}.log", grace_s=5.0)
                await stack.enter_async_context(kept_running(program, _ended))
            await service.until_ready()
            yield service


def _ended(end: ChildExit) -> None:
    """Leave it to the table to tell."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
