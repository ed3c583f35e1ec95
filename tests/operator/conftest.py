"""The control plane with our definition, for tests that need an API server and no pods."""

from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.releases import serves
from paceline_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def control_plane(cluster: Cluster) -> Cluster:
    """An API server that knows the InferenceService."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    wait_until(lambda: serves(cluster), within_s=120)
    return cluster
