"""The fleet of the real ramp under its clients: what they got, and which pods there were."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import httpx

from autoscale.real_services import ARMS
from local_cluster.cluster import Cluster
from local_cluster.monitoring import Stack
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.monitored_service import HOME
from paceline_testing.process_node import ProcessNode, api

_GROUP = f"/apis/serving.paceline.dev/v1alpha1/namespaces/{HOME}/inferenceservices"


@dataclass(frozen=True, slots=True)
class Look:
    """One service at one moment."""

    at_s: float
    """Seconds since the ramp began."""
    wanted: int
    there: int
    """Pods that exist: that start, serve or leave."""
    ready: int


@dataclass(frozen=True, slots=True)
class RealFleet:
    """The cluster, the node of the pods, and the Prometheus that scrapes them."""

    cluster: Cluster
    node: ProcessNode
    stack: Stack

    def drive(self, planned: list[PlannedRequest]) -> dict[str, list[ClientRecord]]:
        """Send the same requests to every service at the same time."""
        records: dict[str, list[ClientRecord]] = {arm: [] for arm in ARMS}

        async def one(arm: str) -> None:
            unlimited = httpx.Limits(max_connections=None)
            pods = _Pods(lambda: self.node.serving(HOME, arm), limits=unlimited)
            async with httpx.AsyncClient(base_url=f"http://{arm}", transport=pods) as client:
                await drive_open(client, planned, Asking(arm), records[arm].append)

        async def every() -> None:
            async with asyncio.TaskGroup() as group:
                for arm in ARMS:
                    group.create_task(one(arm))

        asyncio.run(every())
        return records

    def capacity_rps(self, arm: str) -> float | None:
        """Read λ* of a service from Prometheus; None while it is not known."""
        name = "paceline_capacity_requests_per_second"
        found = self.stack.query(f'{name}{{namespace="{HOME}",inferenceservice="{arm}"}}')
        return float(found[0]["value"][1]) if found else None

    @contextmanager
    def watched(self, began_at: float) -> Iterator[dict[str, list[Look]]]:
        """Look at every service once a second, and yield what is seen by its name."""
        looks: dict[str, list[Look]] = {arm: [] for arm in ARMS}

        def look() -> None:
            with suppress(httpx.HTTPError):  # the next look tells
                self._look(client, looks, time.monotonic() - began_at)

        with api(self.cluster) as client, every_second(look):
            yield looks

    def _look(self, client: httpx.Client, looks: dict[str, list[Look]], at_s: float) -> None:
        services = {each["metadata"]["name"]: each for each in _items(client, _GROUP)}
        pods = _items(client, f"/api/v1/namespaces/{HOME}/pods")
        owners = [each["metadata"]["labels"].get("serving.paceline.dev/service") for each in pods]
        for arm in ARMS:
            wanted = int(services[arm]["spec"].get("replicas", 1))
            ready = len(self.node.serving(HOME, arm))
            looks[arm].append(Look(at_s, wanted, owners.count(arm), ready))


@contextmanager
def every_second(do: Callable[[], None]) -> Iterator[None]:
    """Call it in a thread of its own, once a second until the block is left."""
    is_over = Event()

    def work() -> None:
        while not is_over.wait(1.0):
            do()

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


class _Pods(httpx.AsyncHTTPTransport):
    """Sends each request to the next pod that is ready, as a Service does."""

    def __init__(self, serving: Callable[[], list[str]], *, limits: httpx.Limits) -> None:
        super().__init__(limits=limits)
        self._serving = serving
        self._number = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        urls = self._serving()
        if not urls:
            raise httpx.ConnectError("no pod is ready", request=request)
        self._number += 1
        pod = httpx.URL(urls[self._number % len(urls)])
        request.url = request.url.copy_with(host=pod.host, port=pod.port)
        return await super().handle_async_request(request)


def _items(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    answer = client.get(path)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["items"]
    return found
