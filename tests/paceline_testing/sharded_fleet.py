"""A few simulated pods behind HTTP, tuned by real processes beside the test's."""

import asyncio
import json
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline_operator.metrics import Metrics
from paceline_operator.sharding.shard import Program
from paceline_operator.sharding.shards import Shards
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.pods import PodRefusedError
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.warm_start import WarmStart

_SERVED_S: Final = 3600.0
"""How long each pod has run before it is read first: what it served is in no window any more."""


def uid_of(key: str) -> str:
    """Draw a service's uid from its key."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, key))


@dataclass
class MemoryStore:
    """WarmStartStore."""

    held: WarmStart = field(default_factory=WarmStart)

    async def load(self) -> WarmStart:
        return self.held

    async def save(self, warm_start: WarmStart) -> None:
        self.held = warm_start


@dataclass
class Heard:
    """Listener that keeps what it hears."""

    reports: dict[str, ServiceReport] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    num_failed: int = 0

    def concluded(self, uid: str, report: ServiceReport) -> None:
        self.reports[report.key], self.uids[report.key] = report, uid

    def failed(self, key: str) -> None:
        assert key
        self.num_failed += 1


@dataclass
class Sidecar:
    """The one pod of a service."""

    pod: SimPod
    target: PodTarget
    started_at: float = field(default_factory=lambda: time.monotonic() - _SERVED_S)
    num_reads: int = 0
    num_new_readers: int = 0
    """Reads by who has read nothing before."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.pod.run_until(time.monotonic() - self.started_at)
        try:
            if request.method == "PATCH":
                body = json.loads(await request.read())
                answer: msgspec.Struct = await self.pod.patch_limits(self.target, body)
            else:
                since = int(request.query["since"])
                self.num_reads += 1
                self.num_new_readers += since == 0
                answer = await self.pod.get_telemetry(self.target, since)
        except PodRefusedError as refusal:
            return web.Response(status=refusal.status, text=str(refusal))
        return web.Response(body=msgspec.json.encode(answer))

    @property
    def config_hash(self) -> str:
        """Of the configuration that it was sent last."""
        return self.pod.config_hash


def _has_served() -> SimPod:
    """A pod with a few requests behind it and none to come: it has something to be read."""
    return SimPod(a_laptop(clients(1.0, seconds=5.0)))


@dataclass
class ShardedFleet:
    """Services of one pod each, and the shards that tune them."""

    sidecars: dict[str, Sidecar]
    shards: Shards
    heard: Heard
    store: MemoryStore
    metrics: Metrics

    def follow(self, key: str, config_hash: str = "one", *, interval_s: float = 0.5) -> None:
        spec = TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash=config_hash, interval_s=interval_s)
        target = ServiceTarget(key, spec, (self.sidecars[key].target,))
        self.shards.follow(uid_of(key), target)

    def follow_all(self, config_hash: str = "one") -> None:
        for key in self.sidecars:
            self.follow(key, config_hash)

    def lead(self) -> None:
        """Grant for as long as a test may take."""
        self.grant(time.monotonic() + 600.0)

    def stand_by(self) -> None:
        self.grant(-math.inf)

    def grant(self, until: float) -> None:
        for number in range(self.shards.num_shards):
            self.shards.grant(number, until)

    def all_have(self, config_hash: str) -> bool:
        return all(pod.config_hash == config_hash for pod in self.sidecars.values())

    def of_shard(self, number: int) -> list[str]:
        """Name the services that a shard has."""
        return [key for key in self.sidecars if self.shards._homes[key].number == number]

    def sample(self, name: str, **labels: str) -> float:
        """Read one of the operator's metrics; 0 where it is not there."""
        full = f"paceline_operator_{name}"
        return self.metrics.registry.get_sample_value(full, labels) or 0.0


@asynccontextmanager
async def a_sharded_fleet(
    num_services: int = 4, num_shards: int = 2, program: Program | None = None
) -> AsyncIterator[ShardedFleet]:
    """Serve the pods; all processes and servers have ended after it."""
    sidecars, servers = {}, []
    for number in range(num_services):
        sidecar = Sidecar(_has_served(), PodTarget(f"p{number}", "", "token"))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", sidecar.handle)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        sidecar.target = PodTarget(f"p{number}", str(server.make_url("")).rstrip("/"), "token")
        sidecars[f"ns/s{number}"] = sidecar
    heard, store, metrics = Heard(), MemoryStore(), Metrics()
    shards = Shards(heard, SharedWarmStart(store), metrics, num_shards, program or Program())
    running = asyncio.create_task(shards.run())
    try:
        yield ShardedFleet(sidecars, shards, heard, store, metrics)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for server in servers:
            await server.close()
