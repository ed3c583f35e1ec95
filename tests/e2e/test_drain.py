"""Pods leave under a thousand requests, and not one fails: no client here tries twice."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any, Final

import httpx
import pytest

from local_cluster.cluster import Cluster
from paceline_cli.traffic.open_loop import StreamError, events
from paceline_testing.eviction import evict
from paceline_testing.rolled_service import WITHIN_S, RolledService, chart_installed, served
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.drain, pytest.mark.timeout(1800, func_only=True)]

_REQUESTS: Final = 1000
_CLIENTS: Final = 9
"""A third each: whole answers over one connection, over new ones, and streams."""
_NAME: Final = "drained"
_BODY: Final = {"model": _NAME, "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}
_PAUSE_S: Final = 0.1
_LAST_ANSWER_S: Final = 120.0


@dataclass(slots=True)
class Traffic:
    """What clients of each kind got."""

    texts: dict[str, list[str]] = field(
        default_factory=lambda: {"kept": [], "new": [], "stream": []}
    )
    failures: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.failures)


@contextmanager
def traffic(url: str) -> Iterator[Traffic]:
    """Ask all the while; on leaving, go on until a thousand have been answered."""
    seen = Traffic()
    is_over = Event()

    async def ask_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_CLIENTS):
                kind = list(seen.texts)[number % 3]
                group.create_task(_ask_on(url, kind, seen, is_over))

    thread = Thread(target=lambda: asyncio.run(ask_all()), name="traffic", daemon=True)
    thread.start()
    try:
        wait_until(lambda: seen.count >= 3 * _CLIENTS, within_s=WITHIN_S)
        yield seen
        so_far = seen.count
        wait_until(lambda: seen.count >= max(_REQUESTS, so_far + 3 * _CLIENTS), within_s=WITHIN_S)
    finally:
        is_over.set()
        thread.join(_LAST_ANSWER_S)
    assert not thread.is_alive()


async def _ask_on(url: str, kind: str, seen: Traffic, is_over: Event) -> None:
    limits = httpx.Limits(max_keepalive_connections=0 if kind == "new" else 1)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60.0) as client:
        while not is_over.is_set():
            try:
                ask = _ask_stream if kind == "stream" else _ask_whole
                seen.texts[kind].append(await ask(client))
            except (httpx.HTTPError, StreamError) as problem:
                said = problem.response.text if isinstance(problem, httpx.HTTPStatusError) else ""
                seen.failures.append(f"{kind}: {problem!r} {said}")
            await asyncio.sleep(_PAUSE_S)


async def _ask_whole(client: httpx.AsyncClient) -> str:
    answer = (await client.post("/v1/completions", json=_BODY)).raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def _ask_stream(client: httpx.AsyncClient) -> str:
    body = {**_BODY, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.is_error:
            await answer.aread()
        answer.raise_for_status()
        return "".join([event["choices"][0]["text"] async for event in events(answer)])


def assert_none_failed(seen: Traffic) -> None:
    """Every answer is there, and every one is the same."""
    assert seen.failures == []
    assert seen.count >= _REQUESTS
    assert all(seen.texts.values())
    assert len({text for texts in seen.texts.values() for text in texts}) == 1


@pytest.fixture(scope="module")
def drained(node_cluster: Cluster) -> Iterator[RolledService]:
    """Two pods that serve, under an operator of the chart."""
    with chart_installed(node_cluster, "paceline-drain"):
        service = RolledService(node_cluster, name=_NAME)
        service.apply()
        with served(service):
            yield service


@pytest.fixture
def url(drained: RolledService) -> Iterator[str]:
    if not drained.cluster.is_routed:
        pytest.skip("a forwarded port ends with its pod: a route to Services is needed")
    with drained.cluster.reach(f"service/{_NAME}", 8000) as url:
        yield url


def test_a_rolling_change(drained: RolledService, url: str) -> None:
    """By the Deployment: a cold field of the spec changes."""
    before = set(drained.pods())

    with traffic(url) as seen:
        drained.apply(engine={"maxModelLen": 1024})
        wait_until(drained.serves, within_s=WITHIN_S, every_s=0.5)

    assert before.isdisjoint(drained.pods())
    assert_none_failed(seen)


def test_a_rollout_that_the_operator_makes(drained: RolledService, url: str) -> None:
    """New images: one pod first, then the others."""
    if "engine-again" not in drained.cluster.images:
        pytest.skip("the cluster's nodes have no second name of the engine's image")
    again = drained.cluster.images["engine-again"]

    with traffic(url) as seen:
        drained.apply(engine={"maxModelLen": 1024, "image": again})
        drained.reached("Done", engine=again)
        wait_until(drained.serves, within_s=WITHIN_S, every_s=0.5)

    assert set(drained.pods().values()) == {again}
    assert_none_failed(seen)


def test_a_drain_of_the_node(drained: RolledService, url: str) -> None:
    """`kubectl drain` cordons the node and evicts pod by pod, as the disruption budget lets it.

    There is one node. While it is cordoned no pod can replace the first, so the second must stay.
    """
    before = set(drained.pods())
    first, second = _names(drained)
    evict_second = partial(evict, drained.cluster, second)

    with traffic(url) as seen:
        with cordoned(drained.cluster):
            wait_until(partial(evict, drained.cluster, first), within_s=WITHIN_S, every_s=0.5)
            is_refused = not evict_second()
        wait_until(evict_second, within_s=WITHIN_S, every_s=0.5)
        wait_until(drained.serves, within_s=WITHIN_S, every_s=0.5)

    assert is_refused
    assert before.isdisjoint(drained.pods())
    assert_none_failed(seen)


def test_a_scale_in(drained: RolledService, url: str) -> None:
    """The pod that goes leaves nobody unanswered."""
    with traffic(url) as seen:
        drained.cluster.kubectl("scale", f"pisvc/{_NAME}", "--replicas=1")
        wait_until(lambda: len(_pods(drained)) == 1, within_s=WITHIN_S, every_s=0.5)

    assert_none_failed(seen)


@contextmanager
def cordoned(cluster: Cluster) -> Iterator[None]:
    """Let no node take a new pod."""
    nodes = cluster.kubectl("get", "nodes", "-oname").split()
    cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", *nodes)


def _names(service: RolledService) -> list[str]:
    """Name the pods that stay."""
    return [
        str(pod["metadata"]["name"])
        for pod in _pods(service)
        if "deletionTimestamp" not in pod["metadata"]
    ]


def _pods(service: RolledService) -> list[dict[str, Any]]:
    """The pods that are there, those that leave as well."""
    label = f"--selector=serving.paceline.dev/service={_NAME}"
    text = service.cluster.kubectl("get", "pods", label, "-ojson")
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return found
