"""The Job that upgrades the definition, run by a kubelet from the operator's own image."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_api.schema import definition
from paceline_testing.releases import CHART, DEFINITION, serves
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.node

BEFORE = Path(__file__).parents[1] / "upgrade" / "0.2.0" / "chart"
NAMESPACE = "upgraded-system"


@pytest.fixture
def older(node_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the chart of the version before, in a namespace that restricts its pods."""
    node_cluster.kubectl("delete", "crd", DEFINITION, "--ignore-not-found", "--timeout=120s")
    node_cluster.kubectl("create", "ns", NAMESPACE)
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    node_cluster.kubectl("label", "ns", NAMESPACE, enforced)
    with node_cluster.helm(NAMESPACE) as helm:
        helm.install(BEFORE, "paceline", values(node_cluster), wait="watcher", timeout=300)
        yield node_cluster
        helm.uninstall("paceline")
    node_cluster.kubectl("delete", "ns", NAMESPACE, "--timeout=120s")


def values(cluster: Cluster) -> dict[str, Any]:
    repository, tag = cluster.images["operator"].split(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "engineImage": cluster.images["engine"],
        "sidecarImage": cluster.images["sidecar"],
    }


def test_the_job_upgrades_the_definition_before_the_operator_follows(older: Cluster) -> None:
    """Read-only root, no rights but its own, and gone when it has ended."""
    with older.helm(NAMESPACE) as helm:
        helm.upgrade(CHART, "paceline", values(older), wait="watcher", timeout=300)

    wait_until(lambda: serves(older), within_s=60, every_s=0.5)
    found = json.loads(older.kubectl("get", "crd", DEFINITION, "-o", "json"))
    left = older.kubectl("-n", NAMESPACE, "get", "job,serviceaccount", "-o", "name")
    assert found["spec"]["versions"] == definition()["spec"]["versions"]
    assert "crd-upgrade" not in left
