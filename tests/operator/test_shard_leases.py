"""Each shard has one owner: replicas share them by Leases, and take over what is lost."""

from collections.abc import Iterable

import pytest

from paceline_operator.errors import NotLeadingError
from paceline_operator.leader import RETRY_S, Leader
from paceline_operator.sharding.shard_leases import ShardLeases
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster

_TAKEN_OVER_WITHIN_S = 30.0


class World:
    """Replicas before one API server, on one clock."""

    def __init__(self, names: str, num_shards: int) -> None:
        self.cluster, self.clock = FakeCluster(), ManualClock()
        self.replicas = {name: self._replica(name, num_shards) for name in names}
        self.deaf: set[str] = set()
        self.num_shards = num_shards

    def _replica(self, name: str, num_shards: int) -> ShardLeases:
        leases = tuple(
            Leader(self.cluster, "paceline", f"shard-{number}", name, self.clock)
            for number in range(num_shards)
        )
        return ShardLeases(leases, name)

    async def run(self, seconds: float, names: Iterable[str] | None = None) -> None:
        """Let these replicas look, as often as they do; each shard has one owner at most."""
        for _ in range(round(seconds / RETRY_S)):
            for name in names if names is not None else self.replicas:
                await self.replicas[name].look(may_own=name not in self.deaf)
                owned = [number for one in self.replicas for number in self.owned(one)]
                assert len(owned) == len(set(owned))
            self.clock.advance(RETRY_S)

    def owned(self, name: str) -> list[int]:
        leases = self.replicas[name].leases
        return [number for number, lease in enumerate(leases) if lease.is_leading]

    def counts(self) -> list[int]:
        return [len(self.owned(name)) for name in self.replicas]


async def test_one_replica_owns_all_shards_at_once() -> None:
    """A fresh installation tunes from the first moment."""
    world = World("a", 4)

    await world.run(RETRY_S)

    assert world.owned("a") == [0, 1, 2, 3]


@pytest.mark.parametrize(("names", "num_shards"), [("ab", 4), ("ab", 2), ("abc", 8), ("abc", 2)])
async def test_replicas_come_to_share(names: str, num_shards: int) -> None:
    """Whoever came first gives the others their part; then nothing moves any more."""
    world = World(names, num_shards)
    await world.run(10.0, "a")
    assert world.owned("a") == [*range(num_shards)]

    await world.run(120.0)

    counts = world.counts()
    assert sum(counts) == num_shards
    assert max(counts) - min(counts) <= 1
    owned = {name: world.owned(name) for name in names}
    await world.run(60.0)
    assert {name: world.owned(name) for name in names} == owned


async def test_what_a_lost_replica_owned_is_taken_over_within_half_a_minute() -> None:
    """By those that are left, whenever it was lost between two looks."""
    for extra_looks in range(4):
        world = World("ab", 4)
        await world.run(60.0 + extra_looks * RETRY_S)
        assert world.counts() == [2, 2]

        await world.run(_TAKEN_OVER_WITHIN_S, "b")

        assert world.owned("b") == [0, 1, 2, 3]


async def test_a_replica_that_ends_in_order_leaves_its_shards_to_others_at_once() -> None:
    """An upgrade costs no fifteen seconds."""
    world = World("ab", 4)
    await world.run(60.0)

    await world.replicas["a"].release()
    await world.run(2 * RETRY_S, "b")

    assert world.owned("b") == [0, 1, 2, 3]


async def test_a_replica_that_may_own_nothing_gives_all_back() -> None:
    """A deaf one, for example; and takes its share again when it hears."""
    world = World("ab", 4)
    await world.run(60.0)

    world.deaf.add("a")
    await world.run(_TAKEN_OVER_WITHIN_S)
    assert world.counts() == [0, 4]

    world.deaf.clear()
    await world.run(60.0)
    assert world.counts() == [2, 2]


async def test_an_heir_that_dies_before_it_takes_a_shard_keeps_it_from_nobody() -> None:
    """The Lease that was given to it runs out as any other."""
    world = World("ab", 2)
    await world.run(10.0, "a")
    await world.run(2 * RETRY_S)  # b has asked, a has left one to it

    await world.run(60.0, "a")

    assert world.owned("a") == [0, 1]


async def test_an_api_server_that_is_away_ends_ownership_until_it_is_back() -> None:
    """Nobody knows who else would own by then."""
    world = World("ab", 4)
    await world.run(60.0)
    world.cluster.is_reachable = False
    await world.run(12.0)
    assert world.counts() == [0, 0]
    with pytest.raises(NotLeadingError, match="a owns no shard"):
        world.replicas["a"].check()

    world.cluster.is_reachable = True
    await world.run(60.0)

    assert world.counts() == [2, 2]
    world.replicas["a"].check()


async def test_few_requests_are_needed_in_peace() -> None:
    """Each replica renews its own, and looks at the others' every four seconds."""
    world = World("ab", 4)
    await world.run(60.0)
    world.cluster.reads.clear()
    world.cluster.writes.clear()

    await world.run(60.0)

    assert len(world.cluster.writes) == 4 * 30
    assert len(world.cluster.reads) == 4 * 15
