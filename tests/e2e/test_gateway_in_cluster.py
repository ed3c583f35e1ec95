"""Envoy Gateway as its chart installs it, in front of two pods of a real service on a real node.

`gateway.yaml` and `service.yaml` of `examples/gateway` are applied as people do; only there are two
pods, which ask for less CPU.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from local_cluster import coredns, start
from local_cluster.cluster import Cluster
from local_cluster.gateway_chart import GatewayImages, gateway_installed
from paceline_testing.answering_gateway import answering_gateway
from paceline_testing.gateway_objects import example
from paceline_testing.rolled_service import WITHIN_S, RolledService, chart_installed
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800, func_only=True)]

_NAME: Final = "chat"


@dataclass(frozen=True, slots=True)
class World:
    """The service, and where its gateway listens."""

    service: RolledService
    url: str

    def kubectl(self, *args: str, input: str | None = None) -> str:
        return self.service.cluster.kubectl(*args, input=input)

    def pods(self) -> list[dict[str, Any]]:
        """The service's pods that stay."""
        label = f"--selector=serving.paceline.dev/service={_NAME}"
        found = json.loads(self.kubectl("get", "pods", label, "-ojson"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def names(self) -> set[str]:
        """Return those pods' names."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def served(self) -> dict[str, float]:
        """How many requests each pod has answered."""
        return {pod["metadata"]["name"]: _answered(pod["status"]["podIP"]) for pod in self.pods()}


def _answered(address: str) -> float:
    text = httpx.get(f"http://{address}:8001/metrics", timeout=30).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("paceline_requests_total{")
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A node with two pods and a gateway; names are looked up in the cluster's own DNS."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    images, names = GatewayImages.made(), coredns.image()
    with start.whole(archives=dict([images.gateway, images.envoy, names])) as cluster:
        coredns.serve(cluster, names[0])
        with (
            gateway_installed(cluster, images, folder),
            chart_installed(cluster, "paceline-system"),
        ):
            yield _served(cluster)


def _served(cluster: Cluster) -> World:
    service, route = example("service.yaml")
    rolled = RolledService(cluster, name=_NAME, replicas=2)
    service["spec"]["replicas"] = rolled.replicas
    service["spec"]["resources"]["cpu"] = "300m"
    rolled.apply_spec(service["spec"])
    listed = {"apiVersion": "v1", "kind": "List", "items": [*example("gateway.yaml"), route]}
    cluster.kubectl("apply", "--filename=-", input=json.dumps(listed))
    wait_until(rolled.serves, within_s=WITHIN_S, every_s=0.5)
    return World(rolled, answering_gateway(cluster))


def test_the_gateway_takes_the_policy_that_the_operator_renders(world: World) -> None:
    """It says so itself: weights by utilization are its own work, not ours."""

    def conditions() -> dict[str, str]:
        policy = json.loads(world.kubectl("get", "backendtrafficpolicy", _NAME, "-ojson"))
        (ancestor,) = policy.get("status", {}).get("ancestors", [{}])
        return {each["type"]: each["status"] for each in ancestor.get("conditions", ())}

    wait_until(lambda: conditions().get("Accepted") == "True", every_s=0.5)


def test_both_pods_answer_through_one_address(world: World) -> None:
    """And what they say of their load goes no further than the gateway."""
    before = world.served()
    body = {"model": _NAME, "prompt": "One, two, three,", "max_tokens": 4}
    with httpx.Client(base_url=world.url, timeout=120) as client, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(40)))

    assert {answer.status_code for answer in answers} == {200}
    assert not any("endpoint-load-metrics" in answer.headers for answer in answers)
    got = {name: count - before[name] for name, count in world.served().items()}
    assert min(got.values()) > 0
    assert sum(got.values()) >= 40


def test_a_stream_arrives_piece_by_piece(world: World) -> None:
    """Nothing on the way keeps it until it is whole."""
    body = {"model": _NAME, "prompt": "Once upon a time", "max_tokens": 32, "stream": True}
    with httpx.stream("POST", f"{world.url}/v1/completions", json=body, timeout=120) as answer:
        pieces = [piece for piece in answer.iter_raw() if piece]

    assert len(pieces) >= 8
    assert pieces[-1].endswith(b"data: [DONE]\n\n")


def test_a_pod_that_leaves_costs_no_request(world: World) -> None:
    """The gateway learns of it from the cluster, and tries a refused request on the other."""
    leaving, staying = world.names()
    with world.service.under_load(gateway=world.url):
        world.kubectl("delete", "pod", leaving, "--wait=false")
        wait_until(
            lambda: leaving not in world.names() and world.service.serves(),
            within_s=WITHIN_S,
            every_s=1.0,
        )

    assert staying in world.names()


def test_a_request_that_finds_no_pod_waits_at_the_gateway_for_one(world: World) -> None:
    """The first request after a scale to zero is answered, by a client that asks once."""
    listed = {"apiVersion": "v1", "kind": "List", "items": example("from-zero.yaml")}
    world.kubectl("apply", "--filename=-", input=json.dumps(listed))
    world.kubectl("scale", f"pisvc/{_NAME}", "--replicas=0")
    wait_until(lambda: not world.names(), within_s=WITHIN_S, every_s=0.5)
    wait_until(lambda: _is_held(world.url), within_s=WITHIN_S, every_s=0.5)

    body = {"model": _NAME, "prompt": "One, two, three,", "max_tokens": 4}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{world.url}/v1/completions", json=body, timeout=600)
        world.kubectl("scale", f"pisvc/{_NAME}", "--replicas=1")
        answer = asked.result()

    assert answer.status_code == 200, answer.text


def _is_held(url: str) -> bool:
    try:
        httpx.get(f"{url}/v1/models", timeout=3)
    except httpx.ReadTimeout:
        return True
    return False
