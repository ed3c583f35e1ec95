"""Replicas that share the shards tell the leader what they concluded, and show all decisions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from paceline_operator.leader import LEASE_S, Leader
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.settings import OperatorSettings
from paceline_operator.sharding.messages import Concluded
from paceline_operator.sharding.peers import Peers
from paceline_operator.sharding.shares import shard_of
from paceline_operator.token_key import TokenKey
from paceline_operator.tuning import Tuning
from paceline_operator.web import create_app
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.one_service import OneService
from paceline_testing.reports import a_report
from paceline_testing.services import UID, a_live_service
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_target import ServiceTarget

_KEY = "default/quick"
_SHARDS = 2
_SHARD = shard_of(UID, _SHARDS)
_TOKENS = TokenKey(b"k" * 32)


class Decided:
    """Tuner that has one decision to show."""

    def __init__(self, time: int) -> None:
        self.mark, self.is_up = Annotation(time, time, (), "why"), True

    def grant(self, shard: int, until: float) -> None:
        raise AssertionError((shard, until))

    def follow(self, uid: str, target: ServiceTarget) -> None:
        assert uid == UID
        assert target.key == _KEY

    def forget(self, key: str) -> None:
        raise AssertionError(key)

    def is_tuning(self, key: str) -> bool:
        return self.is_up and key == _KEY

    async def annotations(self, since_ms: float) -> list[Annotation]:
        return [self.mark] if self.mark.time >= since_ms else []

    async def run(self) -> None:
        raise AssertionError


@dataclass
class Replica:
    """One operator with its web server, and what it found worth telling."""

    operation: Operation
    tuning: Tuning
    peers: Peers
    server: TestServer
    told: list[str]

    @property
    def leader(self) -> Leader:
        return self.peers.leader


@dataclass
class World:
    """Two replicas before one API server."""

    cluster: FakeCluster
    clock: ManualClock
    writer: Replica
    """Leads."""
    owner: Replica
    """Owns the shard of the only service."""
    session: aiohttp.ClientSession


async def _a_replica(name: str, world: tuple[FakeCluster, ManualClock], decided: int) -> Replica:
    cluster, clock = world
    settings = OperatorSettings(pod_name=name, tuner_processes=_SHARDS)
    operation = Operation(settings, Metrics())
    server = TestServer(create_app(operation))
    await server.start_server()
    address = str(server.make_url("")).rstrip("/")
    leases = [
        Leader(cluster, "paceline", lease, name, clock, address)
        for lease in ("leader", *(f"shard-{number}" for number in range(_SHARDS)))
    ]
    leader, owners = leases[0], leases[1:]
    told: list[str] = []
    tuning = Tuning(
        OneService(a_live_service()),
        lambda _: "secret",
        told.append,
        lambda _: True,
        operation.metrics,
        owners,
    )
    tuning.tuner = Decided(decided)
    peers = Peers(leader, owners, _TOKENS, clock)
    tuning.pass_on = peers.tell
    operation.leader, operation.tuning, operation.peers = leader, tuning, peers
    operation.token_key = _TOKENS
    tuning.follow(_KEY)
    return Replica(operation, tuning, peers, server, told)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    cluster, clock = FakeCluster(), ManualClock()
    async with AsyncExitStack() as stack:
        writer = await _a_replica("writer", (cluster, clock), 2000)
        owner = await _a_replica("owner", (cluster, clock), 1000)
        for replica in (writer, owner):
            stack.push_async_callback(replica.server.close)
        await writer.leader.try_once()
        await owner.tuning.owners[_SHARD].try_once()
        await writer.tuning.owners[1 - _SHARD].try_once()
        for replica in (writer, owner):
            for lease in (replica.leader, *replica.tuning.owners):
                await lease.try_once()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield World(cluster, clock, writer, owner, session)


async def test_the_leader_hears_what_another_replica_concluded(world: World) -> None:
    """And tells it in the status as if it had been its own; each round is counted once."""
    world.owner.tuning.concluded(UID, a_report(key=_KEY, at=7.0))
    assert world.owner.peers.num_waiting == 1
    assert world.owner.tuning.reports == {}

    await world.owner.peers.tell_now(world.session)

    assert world.owner.peers.num_waiting == 0
    heard = world.writer.tuning.reports[_KEY]
    assert heard.at > 1e9  # by the clock of who hears it
    assert world.writer.told == [_KEY]
    assert world.owner.told == []
    for replica, rounds in ((world.owner, 1.0), (world.writer, 0.0)):
        assert replica.tuning.metrics.tuning_rounds.labels("ok")._value.get() == rounds


async def test_of_two_reports_the_newer_one_is_told(world: World) -> None:
    """What waits is bounded by the number of services."""
    for at in (1.0, 2.0, 3.0):
        world.owner.tuning.concluded(UID, a_report(key=_KEY, at=at))

    assert world.owner.peers.num_waiting == 1


async def test_the_leader_keeps_its_own_reports(world: World) -> None:
    """They cross no network."""
    world.writer.tuning.concluded(UID, a_report(key=_KEY, at=7.0))

    assert world.writer.peers.num_waiting == 0
    assert world.writer.tuning.reports[_KEY].at == 7.0


async def test_who_has_lost_a_shard_is_not_heard(world: World) -> None:
    """The leader owns it by now, and knows better; nor is a service that is another's by now."""
    await world.writer.tuning.owners[_SHARD].try_once()
    world.clock.advance(LEASE_S + 1)
    await world.writer.tuning.owners[_SHARD].try_once()
    assert world.writer.tuning.owners[_SHARD].is_leading

    world.writer.tuning.heard(UID, a_report(key=_KEY))
    world.owner.tuning.heard("another uid", a_report(key=_KEY))

    assert world.writer.tuning.reports == {}
    assert world.owner.tuning.reports == {}


async def test_what_cannot_be_told_waits_and_ends_ownership_in_the_end(world: World) -> None:
    """A replica whose reports reach nobody must leave its shards to one that is heard."""
    world.owner.tuning.concluded(UID, a_report(key=_KEY))
    world.writer.operation.token_key = None  # it starts anew
    for _ in range(4):
        await world.owner.peers.tell_now(world.session)
        assert world.owner.peers.may_own()
        world.clock.advance(8.0)
        await world.writer.leader.try_once()
        await world.owner.leader.try_once()
    assert world.owner.peers.num_waiting == 1
    assert not world.owner.peers.may_own()

    world.writer.operation.token_key = _TOKENS
    await world.owner.peers.tell_now(world.session)

    assert world.owner.peers.may_own()
    assert _KEY in world.writer.tuning.reports


async def test_without_an_address_a_replica_owns_only_while_it_leads(world: World) -> None:
    """Nobody could hear of its reports."""
    for replica in (world.owner, world.writer):
        replica.leader.address = ""

    assert world.writer.peers.may_own()
    assert not world.owner.peers.may_own()


async def test_a_service_that_another_replica_owns_is_tuned(world: World) -> None:
    """Until nobody owns its shard: then the alert on untuned services tells."""
    assert isinstance(world.writer.tuning.tuner, Decided)
    world.writer.tuning.tuner.is_up = False
    assert world.writer.tuning.untuned() == []

    world.clock.advance(LEASE_S + 1)

    assert world.writer.tuning.untuned() == [_KEY]


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [
        ("wrong", b"", 401),
        (_TOKENS.decisions_token(), b"", 401),
        (_TOKENS.reports_token(), b"no reports", 400),
        (_TOKENS.reports_token(), b"", 400),
        (_TOKENS.reports_token(), msgspec.msgpack.encode([1]), 400),
        (_TOKENS.reports_token(), msgspec.msgpack.encode([Concluded("x", a_report())]), 204),
    ],
)
async def test_only_other_replicas_may_report(
    world: World, token: str, body: bytes, status: int
) -> None:
    """What is no report is refused, and one of a service that is gone does nothing."""
    url = world.writer.server.make_url("/reports")
    headers = {"Authorization": f"Bearer {token}"}

    async with world.session.post(url, data=body, headers=headers) as answer:
        assert answer.status == status
    assert world.writer.tuning.reports == {}


async def test_who_does_not_lead_takes_no_reports(world: World) -> None:
    """It would keep them from whoever leads."""
    url = world.owner.server.make_url("/reports")
    headers = {"Authorization": f"Bearer {_TOKENS.reports_token()}"}

    async with world.session.post(url, data=b"\x90", headers=headers) as answer:
        assert answer.status == 409


async def _decisions(world: World, replica: Replica, query: str = "") -> list[int]:
    url = str(replica.server.make_url("/decisions")) + query
    headers = {"Authorization": f"Bearer {_TOKENS.decisions_token()}"}
    async with world.session.get(url, headers=headers) as answer:
        assert answer.status == 200
        return [mark["time"] for mark in await answer.json()]


async def test_any_replica_shows_the_decisions_of_all(world: World) -> None:
    """A dashboard asks whichever one the Service names; one that is away has none."""
    assert await _decisions(world, world.writer) == [1000, 2000]
    assert await _decisions(world, world.owner) == [1000, 2000]
    assert await _decisions(world, world.owner, "?own=1") == [1000]
    assert await _decisions(world, world.owner, "?since=1500") == [2000]

    await world.writer.server.close()

    assert await _decisions(world, world.owner) == [1000]


async def test_reports_wait_while_nobody_leads(world: World) -> None:
    """They are not lost, and nobody is asked in vain."""
    world.owner.tuning.concluded(UID, a_report(key=_KEY))
    world.clock.advance(LEASE_S + 1)

    await asyncio.wait_for(world.owner.peers.tell_now(world.session), 30)

    assert world.owner.peers.num_waiting == 1
    assert world.owner.peers.may_own()
