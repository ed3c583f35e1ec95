"""The chart's pods in a namespace that enforces the restricted Pod Security Standard."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from local_cluster.cluster import Cluster
from paceline_testing.releases import CHART

pytestmark = pytest.mark.cluster

NAMESPACE = "restricted-system"


@pytest.fixture
def restricted(cluster: Cluster) -> Iterator[Cluster]:
    cluster.kubectl("create", "ns", NAMESPACE)
    cluster.kubectl("label", "ns", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    yield cluster
    cluster.kubectl("delete", "ns", NAMESPACE, "--wait=false")


def pods(**values: Any) -> Iterator[dict[str, Any]]:
    """Every pod template of the chart as a pod of its own."""
    texts = Chart.load(CHART).render(values, name="pl", namespace=NAMESPACE)
    for text in (text for path, text in texts.items() if path.endswith(".yaml")):
        for found in yaml.safe_load_all(text):
            template = found and found.get("spec", {}).get("template")
            if template:
                spec = template["spec"] | {"serviceAccountName": "default"}
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "judged", "namespace": NAMESPACE},
                    "spec": spec,
                }


def test_the_operator_is_admitted(restricted: Cluster) -> None:
    """The API server judges; a pod that breaks the standard is refused by it."""
    (operator,) = pods(replicaCount=2, image={"repository": "r.test/o", "tag": "1"})
    text = yaml.safe_dump(operator)
    operator["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True

    answer = restricted.try_kubectl("create", "--dry-run=server", "-f", "-", input=text)
    worse = restricted.try_kubectl(
        *("create", "--dry-run=server", "-f", "-"), input=yaml.safe_dump(operator)
    )
    assert answer.returncode == 0, answer.stderr
    assert "restricted" in worse.stderr
