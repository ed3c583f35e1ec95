"""The control plane with our definition, for tests that need an API server and no pods."""

from pathlib import Path

import pytest

from local_cluster.cluster import Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def control_plane(cluster: Cluster) -> Cluster:
    """An API server that knows the InferenceService."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    cluster.kubectl(
        "wait",
        "--for=condition=Established",
        "crd/inferenceservices.serving.paceline.dev",
        "--timeout=60s",
    )
    return cluster
