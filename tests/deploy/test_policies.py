"""The sample admission policies refuse what they say and nothing else, at the real API server."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.services import a_manifest
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "examples" / "policies"
NAMESPACE = "policy-tests"
DIGEST = "@sha256:" + "0" * 64


@pytest.fixture(scope="module")
def production(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace that the policies bind to, from the moment at which they are in force."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl("create", "ns", NAMESPACE)
    cluster.kubectl("label", "ns", NAMESPACE, "environment=production")
    cluster.kubectl("apply", "-f", str(POLICIES))
    open_door = {"network": {"policy": "None"}}
    latest = {"engine": {"image": "engine:latest"}}
    for refused in (open_door, latest):
        wait_until(partial(is_refused, cluster, refused), within_s=60, every_s=0.5)
    yield cluster
    cluster.kubectl("delete", "-f", str(POLICIES))
    cluster.kubectl("delete", "ns", NAMESPACE, "--wait=false")


def created(
    cluster: Cluster, spec: dict[str, Any], *, namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    manifest = a_manifest("judged", **spec)
    manifest["metadata"]["namespace"] = namespace
    text = json.dumps(manifest)
    return cluster.try_kubectl("create", "--dry-run=server", "-f", "-", input=text)


def is_refused(cluster: Cluster, spec: dict[str, Any]) -> bool:
    return created(cluster, spec).returncode != 0


@pytest.mark.parametrize(
    "image",
    ["engine:0.2.0", "registry.test:5000/paceline/engine:0.2.0", f"engine{DIGEST}"],
    ids=["version", "port", "digest"],
)
def test_a_named_image_passes(production: Cluster, image: str) -> None:
    answer = created(production, {"engine": {"image": image}})

    assert answer.returncode == 0, answer.stderr


def test_the_operators_own_image_and_network_pass(production: Cluster) -> None:
    """By default a service is what the policies ask for."""
    answer = created(production, {})

    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    "image",
    ["engine", "engine:latest", "registry.test:5000/engine"],
    ids=["none", "latest", "port"],
)
def test_an_image_that_may_change_is_refused(production: Cluster, image: str) -> None:
    answer = created(production, {"engine": {"image": image}})

    assert answer.returncode != 0
    assert f"a version other than latest, or a digest: {image}" in answer.stderr


def test_a_service_without_a_network_policy_is_refused(production: Cluster) -> None:
    answer = created(production, {"network": {"policy": "None"}})

    assert answer.returncode != 0
    assert "spec.network.policy must be Restricted here" in answer.stderr


def test_other_namespaces_are_left_alone(production: Cluster) -> None:
    """The bindings name the namespaces, not the policies."""
    spec = {"network": {"policy": "None"}, "engine": {"image": "engine:latest"}}

    assert created(production, spec, namespace="default").returncode == 0
