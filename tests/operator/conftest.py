"""The control plane with our definition, for tests that need an API server and no pods."""

from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEFINITION = "inferenceservices.serving.paceline.dev"


@pytest.fixture(scope="session")
def control_plane(cluster: Cluster) -> Cluster:
    """An API server that knows the InferenceService."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    wait_until(lambda: _serves_ours(cluster), within_s=120)
    return cluster


def _serves_ours(cluster: Cluster) -> bool:
    """`kubectl wait` gives up on a definition so new that it has no list of conditions yet."""
    established = '{.status.conditions[?(@.type=="Established")].status}'
    found = cluster.try_kubectl("get", f"crd/{DEFINITION}", f"-ojsonpath={established}")
    return found.stdout == "True" and cluster.try_kubectl("get", DEFINITION).returncode == 0
