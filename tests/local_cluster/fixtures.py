"""The cluster that a test gets: `cluster` for the API alone, `node_cluster` for pods that run.

In this order: the one that PACELINE_TEST_KUBECONFIG names; ours, started once a session; else the
test is skipped with a sentence that says what is missing. With CI=true a skip is a failure.
"""

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from local_cluster import start
from local_cluster.cluster import Cluster
from local_cluster.errors import UnavailableError
from local_cluster.images import PARTS
from local_cluster.wheels import ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time the test alone: the first to ask for a cluster may have to build it."""
    for item in items:
        needs_cluster = item.get_closest_marker("cluster") or item.get_closest_marker("node")
        if needs_cluster and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900, func_only=True))


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A Kubernetes API with its controllers and scheduler; in our own cluster pods stay Pending."""
    with ExitStack() as stack:
        yield _given() or _started(start.control_plane, stack, pytestconfig)


@pytest.fixture(scope="session")
def node_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A whole Kubernetes that runs pods, with this tree's images."""
    with ExitStack() as stack:
        yield _given() or _started(start.whole, stack, pytestconfig)


def _given() -> Cluster | None:
    """The cluster that the environment names, with the images that its owner loaded."""
    path = os.environ.get("PACELINE_TEST_KUBECONFIG")
    if path is None:
        return None
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    names = {part: f"paceline/{part}:{version}" for part in PARTS}
    return Cluster(Path(path), images=names, is_routed=False)


def _started(
    begin: Callable[[], AbstractContextManager[Cluster]],
    stack: ExitStack,
    config: pytest.Config,
) -> Cluster:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    try:
        # Building takes minutes: a person sees what goes on.
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            return stack.enter_context(begin())
    except UnavailableError as lack:
        if os.environ.get("CI") == "true":
            pytest.fail(str(lack))
        pytest.skip(str(lack))
