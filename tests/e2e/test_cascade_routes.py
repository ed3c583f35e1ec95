"""The cascade asks two models through a real Envoy Gateway with the routes of its example."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from local_cluster.envoy_gateway import envoy_gateway, host_class
from paceline_testing.examples import EXAMPLES, documents_of
from paceline_testing.free_port import free_port
from paceline_testing.gateway_objects import on_loopback
from paceline_testing.scripted_pod import ScriptedPod, scripted_pod

# The first to ask may have to build the gateway.
pytestmark = [pytest.mark.gateway, pytest.mark.timeout(600, func_only=True)]

SERVICES = ("cascade-small", "cascade-large")


@dataclass(frozen=True, slots=True)
class Cascade:
    """A pod of each service, and the gateway's address."""

    pods: tuple[ScriptedPod, ...]
    url: str

    def got(self, *, threshold: float) -> tuple[int, ...]:
        """Have the application ask two questions; how many of them each service got."""
        before = [len(pod.engine.submitted) for pod in self.pods]
        script = EXAMPLES / "pipelines" / "cascade.py"
        subprocess.run(
            [sys.executable, script, "--gateway", self.url, "--threshold", f"{threshold}"],
            input="One?\nTwo?\n",
            text=True,
            check=True,
            timeout=300,
        )
        after = [len(pod.engine.submitted) for pod in self.pods]
        return tuple(now - then for now, then in zip(after, before, strict=True))


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cascade]:
    with ExitStack() as stack:
        pods = tuple(stack.enter_context(scripted_pod()) for _ in SERVICES)
        ports = {name: [pod.port] for name, pod in zip(SERVICES, pods, strict=True)}
        port = free_port()
        routes = on_loopback(documents_of("pipelines/routes.yaml"), ports, port)
        folder = tmp_path_factory.mktemp("gateway")
        stack.enter_context(envoy_gateway(folder, [*host_class("envoy"), *routes], port))
        yield Cascade(pods, f"http://127.0.0.1:{port}/v1")


@pytest.mark.parametrize(
    ("threshold", "got"), [(0.0, (2, 0)), (1.1, (2, 2))], ids=["kept", "passed on"]
)
def test_the_header_reaches_the_large_model(
    cascade: Cascade, threshold: float, got: tuple[int, int]
) -> None:
    """By one address; what the small model is sure of never comes to the large one."""
    assert cascade.got(threshold=threshold) == got
