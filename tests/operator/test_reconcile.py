"""One look at one service: a refusal is told, a namespace that is going is left in peace."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from paceline_api.labels import Manifest
from paceline_operator.apply import Applier
from paceline_operator.errors import ApiError, TerminatingError, WriteRefusedError
from paceline_operator.metrics import Metrics
from paceline_operator.reconcile import Reconciler
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service

_KEY = "default/quick"
_MAY_NOT = WriteRefusedError("apply", "deployments/quick", 403, "you may not")
_GOING = TerminatingError("apply", "deployments/quick", 403, "it is being terminated")


@dataclass(frozen=True)
class OneService:
    """`Watched`, of one service without children and pods."""

    live: Manifest

    def keys(self) -> Iterable[str]:
        return [_KEY]

    def service(self, key: str) -> Manifest | None:
        return self.live if key == _KEY else None

    def children(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return []

    def pods(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return []


def _lead() -> None:
    """Hold the Lease."""


def _reconciler(cluster: FakeCluster) -> Reconciler:
    clock = ManualClock()
    live = a_live_service()
    cluster.objects["InferenceService", "quick"] = live
    return Reconciler(
        OneService(live),
        Applier(cluster, _lead, clock),
        Reporter(cluster, Metrics(), _lead, clock, 30.0),
        Surroundings("engine:1", "sidecar:1", "paceline"),
        reports={},
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(("refusal", "tells"), [(_MAY_NOT, True), (_GOING, False)])
async def test_a_refusal_is_told_unless_the_namespace_goes(
    refusal: ApiError, *, tells: bool
) -> None:
    """A person can mend a missing right; in a namespace that is deleted there is nothing to do."""
    cluster = FakeCluster(refusals={"Deployment": refusal})

    service = await _reconciler(cluster).reconcile(_KEY)

    assert service is not None
    assert ("apply InferenceService/quick/status" in cluster.writes) is tells
    assert any(write.startswith("create Event") for write in cluster.writes) is tells
