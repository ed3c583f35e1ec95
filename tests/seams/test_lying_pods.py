"""Sidecars that hang, lie or answer garbage, over real HTTP: each costs itself alone.

An honest pod stands beside each of them. It must be tuned on, within bounded time and memory; the
liar must be told of with a reason, and be trusted again when it tells the truth.
"""

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline_operator.pod_client import AiohttpPodClient
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import PodReport, ServiceReport
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget

pytestmark = pytest.mark.slow

_TIMEOUT_S = 3.0
_PERIOD_S = 5.0
_SPEC = TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one")
_ROUND_WITHIN_S = 10 * _TIMEOUT_S
"""A read and a write that both hang, with room for a busy machine."""
_MEMORY = 64 * 2**20
Lie = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Sidecar:
    """A simulated pod behind a real HTTP server, which lies on demand."""

    pod: SimPod
    lie: Lie | None = None
    target: PodTarget = field(default_factory=lambda: PodTarget("none", "", ""))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = json.loads(await request.read())
            answer: Any = await self.pod.patch_limits(self.target, body)
        else:
            since = int(request.query["since"])
            answer = await self.pod.get_telemetry(self.target, since)
        truth = msgspec.to_builtins(answer)
        if self.lie is not None:
            return await self.lie(request, truth)
        return web.Response(body=msgspec.json.encode(truth))


@dataclass(slots=True)
class Pair:
    """One honest sidecar, one that may lie, and the loop that tunes both."""

    honest: Sidecar
    liar: Sidecar
    loop: TuningLoop

    async def round(self) -> ServiceReport:
        for sidecar in (self.honest, self.liar):
            sidecar.pod.run_until(sidecar.pod.engine.now + _PERIOD_S)
        pods = (self.honest.target, self.liar.target)
        return await self.loop.tick(ServiceTarget("ml/chat", _SPEC, pods))

    async def rounds(self, count: int) -> dict[str, PodReport]:
        reports = [await self.round() for _ in range(count)]
        return {pod.name: pod for pod in reports[-1].pods}


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    sidecars = []
    servers = []
    for seed, name in enumerate(("honest", "liar"), start=1):
        sidecar = Sidecar(SimPod(a_laptop(clients(0.8, seed=seed), seed=seed)))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", sidecar.handle)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        sidecar.target = PodTarget(name, str(server.make_url("")).rstrip("/"), "token")
        sidecars.append(sidecar)
    async with AiohttpPodClient(timeout_s=_TIMEOUT_S) as client:
        now = sidecars[0].pod
        honest, liar = sidecars
        yield Pair(honest, liar, TuningLoop(client, lambda: now.engine.now))
    for server in servers:
        await server.close()


async def _hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def _hang_in_the_body(request: web.Request, truth: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(msgspec.json.encode(truth)[:100])
    await asyncio.sleep(60)
    return answer


async def _drip(request: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(1000):
        await answer.write(b" ")
        await asyncio.sleep(0.1)
    return answer


async def _hang_up(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _flood(request: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(4096):
        await answer.write(b" " * 2**18)
    return answer


def _says(body: bytes) -> Lie:
    async def say(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body)

    return say


def _with(path: str, value: object) -> Lie:
    """Tell the truth but for one number, whatever JSON makes of it."""

    async def say(_: web.Request, truth: dict[str, Any]) -> web.StreamResponse:
        *outer, last = path.split(".")
        inner = truth
        for name in outer:
            inner = inner.get(name, {})
        if last in inner:
            inner[last] = value
        return web.Response(text=json.dumps(truth))

    return say


_BLIND: Mapping[str, Lie] = {
    "hangs": _hang,
    "hangs-in-the-body": _hang_in_the_body,
    "drips": _drip,
    "hangs-up": _hang_up,
    "floods": _flood,
    "no-json": _says(b"<html>hello</html>"),
    "empty": _says(b""),
    "wrong-shape": _says(b'{"instance": {}, "now": []}'),
    "deep": _says(b"[" * 100_000),
    "a-list": _says(b"[1, 2, 3]"),
    "nan": _with("now", float("nan")),
    "infinite": _with("model.mape", float("inf")),
    "huge": _with("load.output_tokens", 10**30),
    "negative": _with("load.running", -5),
    "no-room": _with("limits.capacity.max_batch_size", -1),
    "model-of-nothing": _with("model.theta", []),
}


@pytest.mark.parametrize("kind", _BLIND)
async def test_a_pod_that_cannot_be_believed_costs_itself_alone(pair: Pair, kind: str) -> None:
    """Bounded time and memory, a reason for that pod, the other one tuned, and back by itself."""
    await pair.rounds(2)
    tracemalloc.start()
    pair.liar.lie = _BLIND[kind]

    begin = time.monotonic()
    lied = await pair.rounds(1)
    took_s = time.monotonic() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert took_s < _ROUND_WITHIN_S
    assert peak < _MEMORY
    assert lied["liar"].error
    assert lied["honest"].error == ""
    pair.liar.lie = None
    mended = await pair.rounds(2)  # the first may contradict the lie
    assert mended["liar"].error == ""


async def test_a_bomb_is_not_unpacked(pair: Pair) -> None:
    """Half a megabyte that stands for half a gigabyte: nobody asked for a compressed answer."""
    small = gzip.compress(bytes(2**29), compresslevel=1)

    async def bomb(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=small, headers={"Content-Encoding": "gzip"})

    pair.liar.lie = bomb

    lied = await pair.rounds(1)

    assert "malformed" in lied["liar"].error
    assert lied["honest"].error == ""


@pytest.mark.parametrize("path", ["now", "load.output_tokens"])
async def test_telemetry_that_goes_backwards_is_not_believed(pair: Pair, path: str) -> None:
    """A new engine has a new instance; the same one cannot unmake tokens or time."""
    await pair.rounds(2)
    pair.liar.lie = _with(path, 0)

    lied = await pair.rounds(1)

    assert "went back" in lied["liar"].error
    assert lied["honest"].error == ""
    pair.liar.lie = None
    mended = await pair.rounds(2)
    assert mended["liar"].error == ""


async def test_a_clock_that_is_far_off_does_not_matter(pair: Pair) -> None:
    """Each pod's telemetry is judged by its own clock."""

    async def in_a_century(_: web.Request, truth: dict[str, Any]) -> web.StreamResponse:
        for entry in (truth, *truth.get("steps", ()), *truth.get("requests", ())):
            for name in ("now", "at", "arrived_at", "finished_at"):
                if name in entry:
                    entry[name] += 3e9
        return web.Response(body=msgspec.json.encode(truth))

    pair.liar.lie = in_a_century
    lied = await pair.rounds(3)
    assert (lied["liar"].error, lied["honest"].error) == ("", "")
    pair.liar.lie = None
    mended = await pair.rounds(3)
    assert mended["liar"].error == ""


async def test_limits_that_are_acknowledged_and_not_taken_are_told(pair: Pair) -> None:
    """Later telemetry shows what is held; its lease is renewed until the pod keeps its word."""
    held: dict[str, Any] = {}

    async def keep(request: web.Request, truth: dict[str, Any]) -> web.StreamResponse:
        if request.method == "PATCH":
            return web.Response(body=msgspec.json.encode(truth))
        held.setdefault("limits", truth["limits"])
        return web.Response(body=msgspec.json.encode(truth | {"limits": held["limits"]}))

    pair.liar.lie = keep
    lied = await pair.rounds(24)

    changes = [body for body in pair.liar.pod.bodies if "token_budget" in body]
    assert 1 <= len(changes) <= 2
    assert "does not hold the limits" in lied["liar"].error
    assert lied["honest"].error == ""
    pair.liar.lie = None
    mended = await pair.rounds(3)
    assert mended["liar"].error == ""
    assert mended["liar"].token_budget == pair.liar.pod.engine.limits.token_budget
