"""Rollouts on a real node, with streaming clients all the while: no request may fail."""

from collections.abc import Iterator

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.quickstart import condition
from paceline_testing.rolled_service import WITHIN_S, RolledService, chart_installed, served
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def rolled(node_cluster: Cluster) -> Iterator[RolledService]:
    """Two pods that serve, under an operator of the chart."""
    if "engine-again" not in node_cluster.images:
        pytest.skip("the cluster's nodes have no second name of the engine's image")
    with chart_installed(node_cluster, "paceline-rollouts"):
        service = RolledService(node_cluster)
        service.apply()
        with served(service):
            yield service


def test_a_cold_change_under_load_fails_no_request(rolled: RolledService) -> None:
    """Surge, readiness and drain: each new pod is ready before an old one leaves."""
    before = set(rolled.pods())

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": 1024})
        wait_until(rolled.serves, within_s=WITHIN_S)

    assert before.isdisjoint(rolled.pods())
    assert rolled.rollout() == {}


def test_a_good_image_serves_on_one_pod_and_then_goes_on(rolled: RolledService) -> None:
    again = rolled.cluster.images["engine-again"]
    before = set(rolled.pods())

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": 1024, "image": again})
        rolled.reached("Canary", engine=again)
        tried = rolled.pods()
        rolled.reached("Done", engine=again)
        wait_until(rolled.serves, within_s=WITHIN_S)

    assert before <= set(tried)
    assert set(rolled.pods().values()) == {again}
    assert rolled.rollout()["verdict"] == "NoDifference"


def test_an_image_that_is_not_there_goes_back_by_itself(rolled: RolledService) -> None:
    """The pods that serve are not touched."""
    again, missing = rolled.cluster.images["engine-again"], "paceline/engine:missing"
    before = rolled.pods()

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": 1024, "image": missing}, startupSeconds=20)
        rolled.reached("RolledBack", engine=missing)

    assert rolled.rollout()["verdict"] == "Failed"
    assert condition(rolled.get(), "Stalled")["reason"] == "RolledBack"
    wait_until(lambda: rolled.pods() == before, within_s=WITHIN_S)
    assert set(before.values()) == {again}


def test_an_image_that_crashes_at_start_goes_back_by_itself(rolled: RolledService) -> None:
    """Long before startupSeconds: its pod keeps ending."""
    before = rolled.pods()
    crashing = rolled.cluster.images["engine-crashing"]
    # With a cold change beside it, an image is not tried first.
    length = rolled.get()["spec"]["engine"]["maxModelLen"]

    with rolled.under_load():
        rolled.apply(engine={"maxModelLen": length, "image": crashing})
        rolled.reached("RolledBack", engine=crashing)
        wait_until(lambda: rolled.pods() == before, within_s=WITHIN_S)

    told = rolled.rollout()
    assert told["verdict"] == "Failed"
    assert "its pod keeps ending" in told["reason"]
    assert condition(rolled.get(), "Stalled")["reason"] == "RolledBack"
