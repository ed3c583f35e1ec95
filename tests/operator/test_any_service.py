"""Whatever the API server would accept: reconciling never crashes, and a second time is silent."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, given, settings

from paceline_api.inference_service import KIND
from paceline_api.labels import SERVICE_LABEL, Manifest
from paceline_api.validate import InvalidManifestError, validate
from paceline_operator.apply import Applier
from paceline_operator.extras import Extras
from paceline_operator.held_up import HeldUpPods
from paceline_operator.loading import LoadingPods
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Observer
from paceline_operator.reconcile import Reconciler
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_operator.token_key import TokenKey
from paceline_testing.clock import ManualClock
from paceline_testing.drawn_manifests import manifests
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import UID
from paceline_testing.silent_pods import SilentPods

_KEY = "default/quick"


@dataclass(frozen=True, slots=True)
class WatchedCluster:
    """`Watched`, that hears at once of everything in a fake cluster."""

    cluster: FakeCluster

    def keys(self) -> Iterable[str]:
        return [_KEY]

    def service(self, key: str) -> Manifest | None:
        assert key == _KEY
        return self.cluster.objects.get((KIND, "quick"))

    def children(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return [
            found
            for (kind, _), found in self.cluster.objects.items()
            if kind not in {KIND, "Secret", "Pod"}
            and SERVICE_LABEL in found["metadata"].get("labels", {})
        ]

    def pods(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return []

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return [(child["kind"], child) for child in self.children(_KEY)]


_MOST_READS = 2
"""Of a reconcile that finds everything as it should be."""


def _lead() -> None:
    """Hold the Lease."""


def _reconciler(cluster: FakeCluster, clock: ManualClock) -> Reconciler:
    applier = Applier(cluster, TokenKey(b"k" * 32), _lead, clock)
    return Reconciler(
        Observer(
            WatchedCluster(cluster),
            reports={},
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=clock.now),
        ),
        applier,
        Extras(cluster, applier, clock),
        HeldUpPods(cluster, clock),
        LoadingPods(SilentPods(), clock),
        Reporter(cluster, Metrics(), _lead, clock, 30.0),
        Surroundings("engine:1", "sidecar:1", "paceline"),
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests())
def test_any_service_is_reconciled_once(manifest: Manifest) -> None:
    """Schema, defaults, rules, plan and render: an answer for each, and then silence.

    Half an hour later neither the same operator nor a new one, with an empty memory, writes.
    """
    try:
        service = validate(manifest)
    except InvalidManifestError:
        return
    live = service.model_dump(by_alias=True, exclude_none=True, mode="json", exclude={"status"})
    live["metadata"] |= {"uid": UID, "generation": 1, "resourceVersion": "1"}
    cluster, clock = FakeCluster(), ManualClock()
    cluster.objects[KIND, "quick"] = live | {"apiVersion": manifest["apiVersion"], "kind": KIND}

    async def reconcile() -> list[str]:
        reconciler = _reconciler(cluster, clock)
        for _ in range(2):  # the first makes the children, the second sees them
            assert (await reconciler.reconcile(_KEY)).service is not None
        before = [*cluster.writes]
        cluster.reads.clear()
        await reconciler.reconcile(_KEY)
        assert cluster.writes == before
        assert len(cluster.reads) + len(cluster.finds) <= _MOST_READS
        clock.advance(1800)
        await reconciler.reconcile(_KEY)
        assert cluster.writes == before
        return before

    before = asyncio.run(reconcile())
    bare = {key: dict(found) for key, found in cluster.objects.items()}
    asyncio.run(_reconciler(cluster, clock).reconcile(_KEY))

    # A new operator applies without effect: every object has the version that it had.
    assert cluster.objects == bare
    assert not any("status" in write for write in cluster.writes[len(before) :])
