"""A simulated pod behind HTTP: what the operator finds at a pod's port 8001."""

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from paceline_sim.sim_pod import SimPod
from paceline_tuner.pods import PodRefusedError
from paceline_tuner.service_target import PodTarget

PORT = 8001
_POD = PodTarget("served", "", "")


@dataclass(frozen=True, slots=True)
class ServedPod:
    """One pod at an address of its own."""

    ip: str
    pod: SimPod
    pace: float = 1.0
    """Seconds that pass for the pod in one second."""
    started_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Bring the pod to the present, then answer as its sidecar would."""
        asked = urlsplit(path)
        with self.lock:
            self.pod.run_until((time.monotonic() - self.started_at) * self.pace)
            if (method, asked.path) == ("GET", "/runtime/telemetry"):
                since = int(parse_qs(asked.query)["since"][0])
                return self._called(self.pod.get_telemetry(_POD, since))
            if (method, asked.path) == ("PATCH", "/runtime/limits"):
                return self._called(self.pod.patch_limits(_POD, msgspec.json.decode(body)))
        return 404, b"{}"

    @staticmethod
    def _called(answer: Coroutine[Any, Any, msgspec.Struct]) -> tuple[int, bytes]:
        try:
            return 200, msgspec.json.encode(asyncio.run(answer))
        except PodRefusedError as refusal:
            return refusal.status, msgspec.json.encode({"error": {"message": str(refusal)}})


@contextmanager
def served(pod: SimPod, number: int = 0, *, pace: float = 1.0) -> Iterator[ServedPod]:
    """Serve it on a loopback address that no other living process picks; `number` is 0 to 2."""
    first = IPv4Address("127.0.0.0") + 2**22  # the highest process id, so that each has its own
    pod_served = ServedPod(str(first + number * 2**22 + os.getpid()), pod, pace)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = pod_served.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Tests print what matters."""

    server = ThreadingHTTPServer((pod_served.ip, PORT), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield pod_served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
