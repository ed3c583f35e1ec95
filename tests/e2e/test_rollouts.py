"""Rollouts on a real node, with streaming clients all the while: no request may fail."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import Cluster
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths
from paceline_testing.background_load import background_load
from paceline_testing.quickstart import condition
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.node

_CHART = Path(__file__).parents[2] / "charts" / "paceline"
_SYSTEM = "paceline-rollouts"
_NAME = "rolled"
_STREAMS = OfferedLoad(
    rate_rps=0.5,
    cv=1.0,
    prompt_tokens=TokenLengths(median=24, sigma=0.3, min=8, max=48),
    output_tokens=TokenLengths(median=16, sigma=0.4, min=8, max=32),
    block_s=6.0,
)
_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """A service of two pods."""

    cluster: Cluster

    def apply(self, *, engine: dict[str, Any] | None = None, **rollout: Any) -> None:
        spec = {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "engine": {
                "maxModelLen": 2048,
                "capacity": {"maxBatchSize": 16, "maxTokenBudget": 512},
            }
            | (engine or {}),
            "sla": {"ttft": {"p99": "60s"}, "itl": {"p99": "10s"}},
            "replicas": 2,
            "resources": {"gpu": {"count": 0}, "cpu": "300m", "memory": "2Gi"},
            "rollout": {"canarySeconds": 20} | rollout,
        }
        manifest = {
            "apiVersion": "serving.paceline.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": _NAME},
            "spec": spec,
        }
        self.cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump(manifest))

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "pisvc", _NAME, "-ojson"))
        return found

    def rollout(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status", {}).get("rollout", {})
        return found

    def serves(self) -> bool:
        """Whether its pods serve the present generation."""
        service = self.get()
        ready = condition(service, "Ready")
        return bool(
            ready.get("status") == "True"
            and ready.get("observedGeneration") == service["metadata"]["generation"]
            and len(self.pods()) == 2
        )

    def pods(self) -> dict[str, str]:
        """The image of the engine of each pod that stays, by the pod's UID."""
        label = f"--selector=serving.paceline.dev/service={_NAME}"
        pods = json.loads(self.cluster.kubectl("get", "pods", label, "-ojson"))["items"]
        return {
            pod["metadata"]["uid"]: pod["spec"]["containers"][0]["image"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Stream answers through the ClusterIP; at the end each must be whole."""
        with (
            self.cluster.reach(f"service/{_NAME}", 8000) as url,
            background_load(url, _STREAMS, model=_NAME) as records,
        ):
            wait_until(lambda: len(records) >= 2, within_s=_WITHIN_S)
            yield
            so_far = len(records)
            wait_until(lambda: len(records) >= so_far + 2, within_s=_WITHIN_S)
        assert {(record.outcome, record.error) for record in records} == {("ok", "")}


@pytest.fixture(scope="module")
def rolled(node_cluster: Cluster) -> Iterator[Rolled]:
    """Two pods that serve, under an operator of the chart."""
    if "engine-again" not in node_cluster.images:
        pytest.skip("the cluster's nodes have no second name of the engine's image")
    repository, tag = node_cluster.images["operator"].split(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "engineImage": node_cluster.images["engine"],
        "sidecarImage": node_cluster.images["sidecar"],
    }
    with node_cluster.helm(_SYSTEM) as helm:
        helm.install(_CHART, _SYSTEM, values, create_namespace=True, wait="watcher", timeout=300)
    service = Rolled(node_cluster)
    service.apply()
    wait_until(service.serves, within_s=_WITHIN_S)
    yield service
    node_cluster.try_kubectl("delete", "pisvc", _NAME, "--timeout=120s")
    with node_cluster.helm(_SYSTEM) as helm:
        helm.uninstall(_SYSTEM, wait="watcher", timeout=300)
    node_cluster.try_kubectl("delete", "namespace", _SYSTEM, "--timeout=120s")


def test_a_cold_change_under_load_fails_no_request(rolled: Rolled) -> None:
    """Surge, readiness and drain: each new pod is ready before an old one leaves."""
    before = set(rolled.pods())

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": 1024})
        wait_until(rolled.serves, within_s=_WITHIN_S)

    assert before.isdisjoint(rolled.pods())
    assert rolled.rollout() == {}


def test_a_good_image_serves_on_one_pod_and_then_goes_on(rolled: Rolled) -> None:
    again = rolled.cluster.images["engine-again"]
    before = set(rolled.pods())

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": 1024, "image": again})
        wait_until(lambda: rolled.rollout().get("phase") == "Canary", within_s=_WITHIN_S)
        tried = rolled.pods()
        wait_until(lambda: rolled.rollout().get("phase") == "Done", within_s=_WITHIN_S)
        wait_until(rolled.serves, within_s=_WITHIN_S)

    assert before <= set(tried)
    assert set(rolled.pods().values()) == {again}
    assert rolled.rollout()["verdict"] == "NoDifference"


def test_an_image_that_is_not_there_goes_back_by_itself(rolled: Rolled) -> None:
    """The pods that serve are not touched."""
    again = rolled.cluster.images["engine-again"]
    before = rolled.pods()

    with rolled.under_load():
        rolled.apply(
            engine={"maxModelLen": 1024, "image": "paceline/engine:missing"}, startupSeconds=20
        )
        wait_until(lambda: rolled.rollout().get("phase") == "RolledBack", within_s=_WITHIN_S)

    assert rolled.rollout()["verdict"] == "Failed"
    assert condition(rolled.get(), "Stalled")["reason"] == "RolledBack"
    wait_until(lambda: rolled.pods() == before, within_s=_WITHIN_S)
    assert set(before.values()) == {again}
