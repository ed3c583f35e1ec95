"""One replica writes; a rival takes over when the Lease runs out, not before."""

import asyncio
from typing import Any

import pytest

from paceline_api.labels import Manifest
from paceline_operator.errors import NotLeadingError
from paceline_operator.kubernetes_api import WRITE_TIMEOUT_S
from paceline_operator.leader import LEASE_S, RENEW_DEADLINE_S, Leader
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster


def _leader(cluster: FakeCluster, clock: ManualClock, identity: str = "a") -> Leader:
    return Leader(cluster, "paceline", "lease", identity, clock)


def _lease(cluster: FakeCluster) -> dict[str, Any]:
    spec: dict[str, Any] = cluster.objects["Lease", "lease"]["spec"]
    return spec


async def test_the_first_takes_the_lease() -> None:
    """A fresh installation leads at once."""
    cluster = FakeCluster()
    leader = _leader(cluster, ManualClock())

    await leader.try_once()

    assert leader.is_leading
    assert _lease(cluster)["holderIdentity"] == "a"
    assert _lease(cluster)["leaseDurationSeconds"] == LEASE_S


async def test_a_second_stands_by() -> None:
    """And may write nothing."""
    cluster, clock = FakeCluster(), ManualClock()
    await _leader(cluster, clock, "a").try_once()
    second = _leader(cluster, clock, "b")

    await second.try_once()

    assert not second.is_leading
    with pytest.raises(NotLeadingError, match="b does not hold Lease lease"):
        second.check()


async def test_a_second_takes_over_when_the_first_is_silent() -> None:
    """Judged by its own clock since it last saw a renewal: clocks of others may be wrong."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    await first.try_once()
    await second.try_once()

    clock.advance(LEASE_S - 1)
    await second.try_once()
    assert not second.is_leading

    clock.advance(2)
    await second.try_once()
    assert second.is_leading
    assert _lease(cluster)["leaseTransitions"] == 1


async def test_a_renewed_lease_is_not_taken() -> None:
    """However long the rival has waited."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    for _ in range(20):
        await first.try_once()
        await second.try_once()
        clock.advance(5)

    assert first.is_leading
    assert not second.is_leading


async def test_a_leader_that_cannot_renew_stops_before_a_rival_may_begin() -> None:
    """The fence: two leaders never write at the same time."""
    cluster, clock = FakeCluster(), ManualClock()
    leader = _leader(cluster, clock)
    await leader.try_once()
    cluster.is_reachable = False

    clock.advance(RENEW_DEADLINE_S - 1)
    await leader.try_once()
    leader.check()
    clock.advance(2)
    await leader.try_once()

    assert not leader.is_leading
    assert RENEW_DEADLINE_S < LEASE_S


async def test_a_write_that_begins_in_time_ends_before_a_rival_may_begin() -> None:
    """The longest write fits between the last moment of one leader and the first of the next."""
    assert RENEW_DEADLINE_S + WRITE_TIMEOUT_S < LEASE_S


async def test_a_renewal_that_hangs_does_not_keep_the_next_from_being_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that never comes must not cost the leadership."""

    class Hanging(FakeCluster):
        hangs = True

        async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
            if self.hangs:
                await asyncio.Event().wait()
            return await super().get(kind, namespace, name)

    monkeypatch.setattr("paceline_operator.leader.WRITE_TIMEOUT_S", 0.01)
    cluster, clock = Hanging(), ManualClock()
    leader = _leader(cluster, clock)

    await leader.try_once()
    assert not leader.is_leading

    cluster.hangs = False
    await leader.try_once()
    assert leader.is_leading


async def test_a_released_lease_is_free_at_once() -> None:
    """An upgrade must not cost fifteen seconds."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    await first.try_once()

    await first.release()
    await second.try_once()

    assert not first.is_leading
    assert second.is_leading


async def test_who_may_not_lead_gives_the_lease_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that hears nothing must not write; another may take over at once."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    await first.try_once()
    monkeypatch.setattr("paceline_operator.leader.RETRY_S", 0.0)
    asked: list[bool] = []
    asked_again = asyncio.Event()

    def may_lead() -> bool:
        asked.append(first.is_leading)
        if len(asked) > 1:
            asked_again.set()
        return False

    running = asyncio.create_task(first.run(may_lead))
    await asyncio.wait_for(asked_again.wait(), timeout=30)
    running.cancel()

    assert asked[:2] == [True, False]
    await second.try_once()

    assert second.is_leading
