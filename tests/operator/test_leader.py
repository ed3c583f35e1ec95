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


async def test_who_may_not_lead_gives_the_lease_back() -> None:
    """Not before all that was lent, as to a process that tunes, has run out."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    await first.look(may_lead=True)

    await first.look(may_lead=False)
    assert not first.is_leading
    assert first.is_leaving
    clock.advance(RENEW_DEADLINE_S - 1)
    await first.look(may_lead=False)
    await second.try_once()
    assert not second.is_leading

    clock.advance(1)
    await first.look(may_lead=False)
    await second.try_once()

    assert second.is_leading
    assert not first.is_leaving


async def test_it_is_renewed_without_being_read() -> None:
    """A Lease that only its holder writes costs one request each time."""
    cluster, clock = FakeCluster(), ManualClock()
    leader = _leader(cluster, clock)
    await leader.try_once()
    cluster.reads.clear()

    for _ in range(5):
        clock.advance(2)
        await leader.try_once()

    assert leader.is_leading
    assert cluster.reads == []


async def test_what_others_wrote_on_the_lease_stays() -> None:
    """Labels of a person, and annotations."""
    cluster, clock = FakeCluster(), ManualClock()
    leader = _leader(cluster, clock)
    await leader.try_once()
    lease = await cluster.get("Lease", "paceline", "lease")
    assert lease is not None
    lease["metadata"] |= {"labels": {"team": "a"}, "annotations": {"note": "hands off"}}
    await cluster.replace(lease)

    await leader.try_once()
    await leader.try_once()

    metadata = cluster.objects["Lease", "lease"]["metadata"]
    assert metadata["labels"] == {"team": "a"}
    assert metadata["annotations"] == {"note": "hands off"}


async def test_a_lease_that_was_deleted_is_made_anew() -> None:
    """By whoever comes first."""
    cluster, clock = FakeCluster(), ManualClock()
    leader = _leader(cluster, clock)
    await leader.try_once()
    cluster.objects.clear()

    await leader.try_once()

    assert leader.is_leading
    assert _lease(cluster)["holderIdentity"] == "a"


async def test_a_lease_that_a_person_gave_to_another_is_lost() -> None:
    """It is seen at the next renewal."""
    cluster, clock = FakeCluster(), ManualClock()
    leader = _leader(cluster, clock)
    await leader.try_once()
    lease = await cluster.get("Lease", "paceline", "lease")
    assert lease is not None
    lease["spec"]["holderIdentity"] = "b"
    await cluster.replace(lease)

    await leader.try_once()

    assert not leader.is_leading
    assert leader.holder == "b"


async def test_who_is_asked_may_hand_the_lease_over() -> None:
    """The asker leads once nothing that was lent can be in use, and nobody comes between."""
    cluster, clock = FakeCluster(), ManualClock()
    first, second, third = (_leader(cluster, clock, name) for name in "abc")
    await first.try_once()
    await second.try_once()

    await second.ask()
    await first.try_once()
    assert first.is_leading
    assert first.asked_by == "b"
    first.leave_to("b")
    assert first.holder == "b"
    clock.advance(RENEW_DEADLINE_S)
    await third.try_once()
    await first.look(may_lead=True)
    await third.try_once()
    await second.try_once()

    assert second.is_leading
    assert not first.is_leading
    assert not third.is_leading
    assert third.holder == "b"
    assert _lease(cluster)["holderIdentity"] == "b"
    assert cluster.objects["Lease", "lease"]["metadata"]["annotations"] == {}


async def test_a_request_that_comes_just_before_a_renewal_costs_no_leadership() -> None:
    """The renewal is refused, as the Lease has changed; the next one hears who asks."""

    class Asked(FakeCluster):
        asks = 0

        async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
            found = await super().get(kind, namespace, name)
            if self.asks and found is not None:
                self.asks -= 1
                other = found | {"metadata": found["metadata"] | {"labels": {"n": str(self.asks)}}}
                await self.replace(other)
            return found

    cluster, clock = Asked(), ManualClock()
    leader, other = _leader(cluster, clock, "a"), _leader(cluster, clock, "b")
    await leader.try_once()
    await other.try_once()
    await other.ask()
    cluster.asks = 1
    clock.advance(2)

    await leader.try_once()
    assert leader.is_leading

    await leader.try_once()
    assert leader.leads_until == clock() + RENEW_DEADLINE_S


async def test_the_lease_says_where_its_holder_is() -> None:
    """Whoever stands by can tell it something."""
    cluster, clock = FakeCluster(), ManualClock()
    first = Leader(cluster, "paceline", "lease", "a", clock, address="http://10.0.0.1:8080")
    second = _leader(cluster, clock, "b")
    await first.try_once()
    await second.try_once()

    assert second.rival_address == "http://10.0.0.1:8080"
    assert first.rival_address == ""

    clock.advance(LEASE_S + 1)
    assert second.rival_address == ""
    assert second.holder == ""
