"""Whatever the API server would accept: reconciling never crashes, and a second time is silent."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings

from paceline_api.inference_service import KIND
from paceline_api.labels import SERVICE_LABEL, Manifest
from paceline_api.validate import InvalidManifestError, validate
from paceline_operator.reconcile import Reconciler
from paceline_testing.clock import ManualClock
from paceline_testing.drawn_manifests import manifests
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.reconcilers import a_reconciler
from paceline_testing.services import UID

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


def _has_empty(value: Any) -> bool:
    """Whether it has a list, or labels to match, without an entry."""
    if isinstance(value, dict):
        return value.get("matchLabels") == {} or any(map(_has_empty, value.values()))
    return isinstance(value, list) and (not value or any(map(_has_empty, value)))


def _reconciler(cluster: FakeCluster, clock: ManualClock) -> Reconciler:
    return a_reconciler(cluster, clock, WatchedCluster(cluster))


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
        # The API server drops them: each apply would be a write.
        children = [child for (kind, _), child in cluster.objects.items() if kind != KIND]
        assert not [child for child in children if _has_empty(child)]
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
