"""A pod for gateways: a whole sidecar in front of a scripted engine."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until


@dataclass(frozen=True, slots=True)
class ScriptedPod:
    """One that takes requests."""

    sidecar: Sidecar
    engine: ScriptedEngine

    @property
    def port(self) -> int:
        """The public port on loopback."""
        return self.sidecar.settings.port

    def refusals(self) -> int:
        """How many prompts it has refused."""
        lines = self.sidecar.public.get("/metrics").text.splitlines()
        counts = [line for line in lines if line.startswith("paceline_refusals_total{")]
        return sum(round(float(line.rsplit(" ", 1)[1])) for line in counts)

    def stop(self) -> None:
        """End the sidecar as SIGTERM does; its port is closed on return."""
        self.sidecar.leave()
        self.sidecar.thread.join(30)


@contextmanager
def scripted_pod(**changes: Any) -> Iterator[ScriptedPod]:
    """Run one, with these settings of its sidecar; end it where the test has not."""
    path = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    with ScriptedEngine(path) as engine:
        sidecar = start_sidecar(path, **changes)
        try:
            wait_until(sidecar.ready)
            yield ScriptedPod(sidecar, engine)
        finally:
            if sidecar.thread.is_alive():
                sidecar.leave()
            sidecar.join()
    shutil.rmtree(path)
