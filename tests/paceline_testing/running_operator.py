"""The operator as a process of its own, against a real API server."""

import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from local_cluster.cluster import Cluster
from paceline_testing.ending import end
from paceline_testing.free_port import free_port

T = TypeVar("T")

_WITHIN_S = 240.0
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class RunningOperator:
    """One operator process."""

    url: str
    log: Path
    starts: list[int]
    """The process ids, the present one last."""

    @property
    def pid(self) -> int:
        return self.starts[-1]

    def get(self, path: str) -> str:
        """Ask its own web server."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, line: str) -> float:
        """Read one sample, named with its labels as it is exposed."""
        samples = dict(
            sample.rsplit(" ", 1)
            for sample in self.get("/metrics").splitlines()
            if not sample.startswith("#")
        )
        return float(samples[line])


@contextmanager
def running_operator(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    *,
    is_namespaced: bool = True,
    is_probed: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunningOperator]:
    """Start it for one namespace or for all, wait until it is ready, and end it with SIGTERM.

    Meanwhile it is started again whenever it ends with an error, as the kubelet does; where it is
    probed, also when its liveness has failed three times.
    """
    port = free_port()
    log = folder / f"operator-{port}.log"
    environment = os.environ | {
        "KUBECONFIG": str(cluster.kubeconfig),
        "PACELINE_OPERATOR_WATCH_NAMESPACES": namespace if is_namespaced else "",
        "PACELINE_OPERATOR_NAMESPACE": namespace,
        "PACELINE_OPERATOR_POD_NAME": f"operator-{port}",
        "PACELINE_OPERATOR_HOST": "127.0.0.1",
        "PACELINE_OPERATOR_PORT": str(port),
        "PACELINE_OPERATOR_RESYNC_S": "5",
        **settings,
    }
    log.touch()

    def start() -> "subprocess.Popen[bytes]":
        with log.open("ab") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "paceline_operator"],
                env=environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    processes = [start()]
    operator = RunningOperator(f"http://127.0.0.1:{port}", log, [processes[0].pid])
    is_over = threading.Event()

    def keep() -> None:
        while _ended_badly(processes[-1], operator, is_probed=is_probed) and not is_over.is_set():
            processes.append(start())
            operator.starts.append(processes[-1].pid)

    try:
        eventually(lambda: _is_ready(operator, processes[-1]), told_by=log)
        keeper = threading.Thread(target=keep, name="kubelet", daemon=True)
        keeper.start()
        yield operator
    finally:
        is_over.set()
        end(processes[-1])


def eventually(
    look: Callable[[], T | None], *, told_by: Path | None = None, within_s: float = _WITHIN_S
) -> T:
    """Look until there is something true to see; the operator's log tells why not."""
    give_up_at = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > give_up_at:
            log = told_by.read_text(errors="replace")[-4000:] if told_by else ""
            raise AssertionError(f"not seen within {within_s:.0f} s\n{log}")
        time.sleep(0.1)


def _ended_badly(
    process: "subprocess.Popen[bytes]", operator: RunningOperator, *, is_probed: bool
) -> bool:
    """Wait for its end; whether it ended with an error, or because its liveness failed."""
    failures = 0
    while is_probed and process.poll() is None:
        failures = failures + 1 if _is_ill(operator) else 0
        if failures == _FAILURES:
            end(process)
            return True
        time.sleep(0.5)
    return process.wait() > 0


def _is_ill(operator: RunningOperator) -> bool:
    try:
        operator.get("/healthz")
    except urllib.error.HTTPError:
        return True
    except OSError:  # it starts, or ends by itself
        return False
    return False


def _is_ready(operator: RunningOperator, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the operator ended: {operator.log.read_text()[-4000:]}")
    try:
        return operator.get("/readyz") != ""
    except OSError:  # it starts, or the machine is busy
        return False
