"""A slower engine on a real node: found out on one pod by its requests, and taken back."""

from collections.abc import Iterator

import pytest

from local_cluster.cluster import Cluster
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths
from paceline_testing.quickstart import condition
from paceline_testing.rolled_service import WITHIN_S, RolledService, chart_installed, served
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.canary, pytest.mark.timeout(900, func_only=True)]

# A hundred requests of each pod are compared at a time, and what they weigh is nearly all fixed
# cost, so short ones serve.
_MANY = OfferedLoad(
    rate_rps=12.0,
    cv=1.0,
    prompt_tokens=TokenLengths(median=8, sigma=0.0, min=8, max=8),
    output_tokens=TokenLengths(median=1, sigma=0.0, min=1, max=1),
    block_s=6.0,
)


@pytest.fixture(scope="module")
def single(node_cluster: Cluster) -> Iterator[RolledService]:
    """One pod that serves within a second and a half."""
    if "engine-slow" not in node_cluster.images:
        pytest.skip("the cluster's nodes have no image of a slow engine")
    with chart_installed(node_cluster, "paceline-canary"):
        service = RolledService(node_cluster, name="single", replicas=1)
        service.apply_spec(_spec())
        with served(service):
            yield service


def _spec(image: str | None = None) -> dict[str, object]:
    return {
        "model": {"uri": "builtin://smollm2-135m-instruct"},
        "engine": {
            "maxModelLen": 512,
            "capacity": {"maxBatchSize": 64, "maxTokenBudget": 2048},
        }
        | ({"image": image} if image else {}),
        "sla": {"ttft": {"p99": "1500ms"}},
        # What is refused could not be told from what fails.
        "admission": {"shedHopeless": False, "rejectAt": "1"},
        "replicas": 1,
        "resources": {"gpu": {"count": 0}, "cpu": "300m", "memory": "2Gi"},
        "rollout": {"canarySeconds": 400},
    }


def test_an_image_that_is_slower_is_judged_worse_and_goes_back(single: RolledService) -> None:
    """Its requests miss the SLA and the old pod's do not; no request fails, and no pod is lost."""
    before, slow = single.pods(), single.cluster.images["engine-slow"]

    # One connection for each: a client that keeps some would ask the quicker pod more often.
    with single.under_load(_MANY, keeps_connections=False):
        single.apply_spec(_spec(slow))
        single.reached("RolledBack", engine=slow)
        wait_until(lambda: single.pods() == before, within_s=WITHIN_S)

    told = single.rollout()
    print(told)  # noqa: T201 - shown with -s, or on failure
    assert told["verdict"] == "Worse"
    assert "the candidate" in told["reason"]
    assert condition(single.get(), "Stalled")["reason"] == "RolledBack"
