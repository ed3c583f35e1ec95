"""The control plane for tests that need an API server and no pods."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import start
from local_cluster.cluster import Cluster
from local_cluster.errors import UnavailableError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """An API server with its controllers and our definition; no node."""
    if given := os.environ.get("PACELINE_TEST_KUBECONFIG"):
        yield _with_definition(Cluster(Path(given)))
        return
    try:
        with start.control_plane() as cluster:
            yield _with_definition(cluster)
    except UnavailableError as lack:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(lack))


def _with_definition(cluster: Cluster) -> Cluster:
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    cluster.kubectl(
        "wait",
        "--for=condition=Established",
        "crd/inferenceservices.serving.paceline.dev",
        "--timeout=60s",
    )
    return cluster
