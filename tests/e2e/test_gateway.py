"""A real Envoy Gateway with the examples' own objects, in front of sidecars on scripted engines.

Three services: `chat` with two pods, its candidate `chat-next` and `chat-small` with one each.
The last test has two real engines behind it.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from local_cluster.envoy_gateway import envoy_gateway, host_class
from overload.asking import MODEL
from overload.served import served
from paceline_api.labels import Manifest
from paceline_api.validate import validate
from paceline_operator.render.gateway import traffic_policy
from paceline_testing.free_port import free_port
from paceline_testing.gateway_objects import example, on_loopback
from paceline_testing.scripted_pod import ScriptedPod, scripted_pod
from paceline_testing.waiting import wait_until

# The first to ask may have to build the gateway.
pytestmark = [pytest.mark.gateway, pytest.mark.timeout(600, func_only=True)]

_CHAT = {"model": "scripted", "prompt": "Hi"}
_LARGE = {"x-model-size": "large"}
_ENVOYS_TIMEOUT_S = 15.0
"""Envoy ends a request after this long where a route says nothing."""


@dataclass(frozen=True, slots=True)
class World:
    """The pods of each service; the gateway in front of them comes with a test's own objects."""

    services: dict[str, list[ScriptedPod]]
    folder: Path

    @contextmanager
    def behind(self, objects: Sequence[Manifest]) -> Iterator[httpx.Client]:
        """Run a gateway with these objects; gives a client of it."""
        port = free_port()
        ports = {name: [pod.port for pod in pods] for name, pods in self.services.items()}
        moved = [*host_class("envoy"), *on_loopback(objects, ports, port)]
        url = f"http://127.0.0.1:{port}"
        with (
            envoy_gateway(self.folder, moved, port),
            httpx.Client(base_url=url, timeout=120) as client,
        ):
            yield client

    def served(self) -> Counter[str]:
        """How many requests the engines of each service have got."""
        return Counter(
            {
                name: sum(len(pod.engine.submitted) for pod in pods)
                for name, pods in self.services.items()
            }
        )

    @property
    def pods(self) -> list[ScriptedPod]:
        return [pod for pods in self.services.values() for pod in pods]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    numbers = {"chat": 2, "chat-next": 1, "chat-small": 1}
    with ExitStack() as stack:
        pods = {
            name: [stack.enter_context(scripted_pod()) for _ in range(number)]
            for name, number in numbers.items()
        }
        yield World(pods, tmp_path)


@pytest.fixture
def client(world: World) -> Iterator[httpx.Client]:
    """A client of the gateway with `routes.yaml` and `balance.yaml`; it asks the large model."""
    with world.behind([*example("routes.yaml"), *example("balance.yaml")]) as client:
        client.headers.update(_LARGE)
        yield client


def ask(client: httpx.Client, count: int, **headers: str) -> Counter[int]:
    """Send so many requests, one after the other; the answers' codes."""
    return Counter(
        client.post("/v1/completions", json=_CHAT, headers=headers).status_code
        for _ in range(count)
    )


def test_a_header_and_a_path_choose_the_service(world: World, client: httpx.Client) -> None:
    """`chat-small` has all but the large requests; a path that no rule knows is nobody's."""
    assert ask(client, 10, **{"x-model-size": "small"}) == {200: 10}
    del client.headers["x-model-size"]
    assert ask(client, 10) == {200: 10}
    small = world.served()
    assert ask(client, 10, **_LARGE) == {200: 10}
    large = world.served() - small

    assert small == Counter({"chat-small": 20})
    assert large["chat-small"] == 0
    assert client.post("/v2/completions", json=_CHAT).status_code == 404


def shares(world: World, client: httpx.Client) -> tuple[int, int, int]:
    """Ask 300 times; how many came to the first pod of `chat`, to its second and to `chat-next`."""
    pods = [*world.services["chat"], *world.services["chat-next"]]
    before = [len(pod.engine.submitted) for pod in pods]
    assert ask(client, 300) == {200: 300}
    first, second, candidate = (
        len(pod.engine.submitted) - had for pod, had in zip(pods, before, strict=True)
    )
    return first, second, candidate


def tell_capacities(world: World) -> None:
    """λ* of the candidate is greater than that of all others."""
    slow, fast = world.services["chat"]
    (candidate,) = world.services["chat-next"]
    for pod, capacity_rps in ((slow, 2), (fast, 18), (candidate, 100)):
        change = {"epoch": 1, "lease_s": 600, "capacity_rps": capacity_rps}
        assert pod.sidecar.admin.patch("/runtime/limits", json=change).status_code == 200


def test_pods_get_what_they_report_and_the_canary_gets_its_weight(
    world: World, client: httpx.Client
) -> None:
    """Weights choose between services, and reports between the pods of each."""
    tell_capacities(world)
    wait_until(lambda: shares(world, client)[0] <= 60, within_s=180)  # the reports count

    of_slow, of_fast, of_candidate = shares(world, client)

    assert 5 <= of_slow <= 60  # of 270 a tenth
    assert of_fast >= 180
    assert 10 <= of_candidate <= 60  # of 300 a tenth; by its report it would be 250


def test_without_filters_reports_alone_decide(world: World) -> None:
    """It is why the example has them: one Envoy cluster holds the pods of both services."""
    routes = example("routes.yaml")
    for route in routes:
        for rule in route["spec"].get("rules", ()):
            for reference in rule["backendRefs"]:
                reference.pop("filters", None)
    tell_capacities(world)

    with world.behind([*routes, *example("balance.yaml")]) as client:
        client.headers.update(_LARGE)
        wait_until(lambda: shares(world, client)[2] >= 200, within_s=180)


def test_the_load_stays_behind_the_gateway_and_the_service_is_named(client: httpx.Client) -> None:
    """Callers are not told how busy the pods are, but which service has answered."""
    answer = client.post("/v1/completions", json=_CHAT)

    assert answer.status_code == 200
    assert "endpoint-load-metrics" not in answer.headers
    assert answer.headers["x-service"] in {"chat", "chat-next"}


def test_a_stream_passes_as_it_comes(world: World, client: httpx.Client) -> None:
    """The first pieces are there while the engine still holds the rest."""
    for pod in world.pods:
        pod.engine.script.hold_after = 2
    body = _CHAT | {"stream": True}

    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        first = json.loads(next(lines).removeprefix("data: "))
        is_held = any(pod.engine.running for pod in world.pods)
        for pod in world.pods:
            pod.engine.script.hold_after = None
        *_, last = lines

    assert first["choices"][0]["text"]
    assert is_held
    assert last == "data: [DONE]"


def test_a_long_answer_is_not_cut(world: World, client: httpx.Client) -> None:
    """It takes longer than Envoy allows a route that says nothing, and arrives whole."""
    for pod in world.pods:
        pod.engine.script.hold_after = 0
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/v1/completions", json=_CHAT)
        wait_until(lambda: time.monotonic() > started + _ENVOYS_TIMEOUT_S + 2)
        assert not asked.done()
        for pod in world.pods:
            pod.engine.script.hold_after = None
        answer = asked.result(timeout=60)

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]


def test_a_503_is_tried_on_the_other_pod(world: World, client: httpx.Client) -> None:
    """A pod whose engine is gone says 503 with Retry-After before any part of an answer."""
    broken, healthy = world.services["chat"]
    broken.engine.stop()
    wait_until(lambda: not broken.sidecar.ready())
    direct = broken.sidecar.public.post("/v1/completions", json=_CHAT)

    assert ask(client, 40) == {200: 40}
    assert (direct.status_code, "retry-after" in direct.headers) == (503, True)
    assert broken.refusals() > 1  # it was asked, and not only by the test
    assert healthy.engine.submitted


def test_a_503_is_tried_again_where_requests_wait_for_a_pod(world: World) -> None:
    """The route that holds requests treats a pod that leaves or starts as the others do."""
    broken, healthy = world.services["chat"]
    with world.behind(example("from-zero.yaml")) as client:
        broken.engine.stop()
        wait_until(lambda: not broken.sidecar.ready())

        assert ask(client, 10) == {200: 10}

    assert broken.refusals() > 0
    assert healthy.engine.submitted


def test_a_pod_that_is_down_costs_no_request(world: World, client: httpx.Client) -> None:
    """A refused connection is tried on the other one, too."""
    world.services["chat"][0].stop()

    assert ask(client, 40) == {200: 40}


def test_a_429_is_passed_on_with_its_time(world: World, client: httpx.Client) -> None:
    """No second pod is asked: an overload must not be doubled."""
    full = {"epoch": 2, "lease_s": 600, "admission": {"max_queued_requests": 1}}
    for pod in world.pods:
        assert pod.sidecar.admin.patch("/runtime/limits", json=full).status_code == 200
        pod.engine.script.hold_after = 0

    with ThreadPoolExecutor(len(world.pods)) as pool:
        held = [
            pool.submit(pod.sidecar.public.post, "/v1/completions", json=_CHAT)
            for pod in world.pods
        ]
        wait_until(lambda: all(pod.engine.running for pod in world.pods))
        answer = client.post("/v1/completions", json=_CHAT | {"prompt": ["a", "b"]})
        for pod in world.pods:
            pod.engine.script.hold_after = None
        assert [each.result(timeout=30).status_code for each in held] == [200] * len(held)

    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert sorted(pod.refusals() for pod in world.pods) == [0, 0, 0, 2]  # both prompts, by one pod


def test_callers_without_a_key_stay_outside(world: World) -> None:
    """The Secret is the one that the example's first lines make."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "gateway-keys", "namespace": "default"},
        "data": {"alice": b64encode(b"the-key-of-alice").decode()},
    }
    with world.behind([*example("routes.yaml"), *example("keys.yaml"), secret]) as client:
        without = ask(client, 5)
        wrong = ask(client, 5, **{"x-api-key": "another"})
        assert not +world.served()
        right = ask(client, 5, **{"x-api-key": "the-key-of-alice"})

    assert (without, wrong, right) == ({401: 5}, {401: 5}, {200: 5})


def test_another_service_answers_where_the_first_is_down(world: World) -> None:
    """While `chat` has a healthy pod it gets everything; then `chat-small` does."""
    with world.behind([*example("routes.yaml"), *example("fallback.yaml")]) as client:

        def always(count: int) -> Counter[int]:
            return Counter(
                client.post("/always/v1/completions", json=_CHAT).status_code for _ in range(count)
            )

        assert always(20) == {200: 20}
        assert world.served() == Counter({"chat": 20})
        for pod in world.services["chat"]:
            pod.stop()

        assert always(20) == {200: 20}
        assert world.served()["chat-small"] == 20


def test_two_real_engines_answer_and_stream(tmp_path: Path) -> None:
    """The route of `service.yaml` and the operator's own policy, before the embedded model."""
    asyncio.run(_two_real_engines(tmp_path))


async def _two_real_engines(folder: Path) -> None:
    service, route = example("service.yaml")
    policy = traffic_policy(validate(service))
    assert policy is not None
    del policy["metadata"]["ownerReferences"]  # no API server has given the service a uid
    port, places = free_port(), [folder / name for name in ("first", "second", "gateway")]
    for place in places:
        place.mkdir()
    first_place, second_place, gateway_place = places
    async with served(first_place) as first, served(second_place) as second:
        pods = (first, second)
        behind = on_loopback([route, policy], {"chat": [pod.port for pod in pods]}, port)
        with envoy_gateway(gateway_place, [*host_class("envoy"), *behind], port):
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                codes = Counter([await _completion(client) for _ in range(8)])
                answered = [(await pod.metrics())["paceline_requests_total"] for pod in pods]
                pieces = await _stream(client)

    assert codes == {200: 8}
    assert min(answered) > 0
    assert sum(answered) == 8
    assert len(pieces) > 2
    assert pieces[-1] == "data: [DONE]"


async def _completion(client: httpx.AsyncClient) -> int:
    body = {"model": MODEL, "prompt": "One, two, three,", "max_tokens": 4}
    return (await client.post("/v1/completions", json=body)).status_code


async def _stream(client: httpx.AsyncClient) -> list[str]:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        return [line async for line in answer.aiter_lines() if line]
