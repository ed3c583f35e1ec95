"""The children that serving does not need: written where they can be, told where they cannot."""

from datetime import UTC, datetime

import pytest

from paceline_api.labels import labels
from paceline_operator.apply import Applier
from paceline_operator.errors import WriteRefusedError
from paceline_operator.extras import Extras
from paceline_operator.observe import Lack, Observation
from paceline_operator.token_key import TokenKey
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service, a_service

_MONITOR, _RULES = ("PodMonitor", "quick"), ("PrometheusRule", "quick")
_ADDRESSES = ("Service", "quick-pods")
_POLICY, _POOL = ("BackendTrafficPolicy", "quick"), ("InferencePool", "quick")
_BOTH = frozenset({"PodMonitor", "PrometheusRule"})
_ALL = _BOTH | {"BackendTrafficPolicy", "InferencePool"}
_TOLD: dict[str, object] = {
    "gateway": "EnvoyGateway",
    "inferencePool": {"endpointPickerRef": {"name": "picker", "port": {"number": 9002}}},
}


class World:
    """One service in a cluster that has the Prometheus Operator, unless told otherwise."""

    def __init__(self, kinds: frozenset[str] = _BOTH) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(
            {("InferenceService", "quick"): a_live_service()}, served_kinds=kinds
        )
        self.extras = self.restarted()

    def restarted(self) -> Extras:
        applier = Applier(self.cluster, TokenKey(b"k" * 32), _lead, self.clock)
        return Extras(self.cluster, applier, self.clock)

    async def bring(
        self, api: dict[str, object] | None = None, **monitoring: object
    ) -> tuple[Lack, ...]:
        """Look once, and forget what was written and read before."""
        self.cluster.writes.clear()
        self.cluster.reads.clear()
        watched = {
            which: found for which, found in self.cluster.objects.items() if which == _ADDRESSES
        }
        service = a_service(monitoring=monitoring, api=api or {})
        observed = Observation(service, watched, (), None, datetime.now(UTC))
        return await self.extras.bring(observed)


async def _lead() -> None:
    """Hold the Lease."""


async def test_each_is_written_where_it_is_asked_for_and_goes_when_it_is_not() -> None:
    """The pods' addresses are always there."""
    world = World()

    assert await world.bring(podMonitor=True, rules=True) == ()
    assert {_ADDRESSES, _MONITOR, _RULES} <= world.cluster.objects.keys()

    assert await world.bring(rules=True) == ()
    assert world.cluster.writes == ["delete PodMonitor/quick"]

    world.extras = world.restarted()
    assert await world.bring() == ()
    assert "delete PrometheusRule/quick" in world.cluster.writes


async def test_an_unchanged_world_is_neither_written_nor_read() -> None:
    """What is not watched is read again after five minutes."""
    world = World()
    await world.bring(podMonitor=True)

    await world.bring(podMonitor=True)
    assert (world.cluster.writes, world.cluster.reads) == ([], [])

    world.clock.advance(301)
    world.cluster.objects[_MONITOR]["spec"] = {"selector": {}}
    await world.bring(podMonitor=True)
    assert world.cluster.writes == ["apply PodMonitor/quick"]


async def test_a_service_that_asks_for_nothing_is_looked_at_once() -> None:
    """A monitor may be left from before a restart; nothing else would make one."""
    world = World()
    await world.bring()
    assert "get PodMonitor/quick" in world.cluster.reads

    world.clock.advance(3600)
    await world.bring()

    assert world.cluster.reads == []


async def test_a_kind_that_the_cluster_lacks_is_told_and_picked_up_later() -> None:
    """The Prometheus Operator is often installed after the services."""
    world = World(kinds=frozenset())

    (lack,) = await world.bring(podMonitor=True)
    assert (lack.reason, "PodMonitor" in lack.message) == ("KindMissing", True)
    assert _ADDRESSES in world.cluster.objects

    world.cluster.served_kinds = _BOTH
    world.clock.advance(61)
    assert await world.bring(podMonitor=True) == ()
    assert _MONITOR in world.cluster.objects


async def test_what_gateways_are_told_goes_when_it_is_taken_back() -> None:
    """Each by itself; that the operator began anew meanwhile changes nothing."""
    world = World(kinds=_ALL)

    assert await world.bring(_TOLD) == ()
    assert {_POLICY, _POOL} <= world.cluster.objects.keys()

    assert await world.bring({"inferencePool": _TOLD["inferencePool"]}) == ()
    assert world.cluster.writes == ["delete BackendTrafficPolicy/quick"]

    world.extras = world.restarted()
    assert await world.bring() == ()
    assert "delete InferencePool/quick" in world.cluster.writes


async def test_a_policy_follows_the_admission_of_its_service() -> None:
    """The longest time of a request is hot: pods follow it at once, and so does the gateway."""
    world = World(kinds=_ALL)
    await world.bring(_TOLD)
    before = world.cluster.objects[_POLICY]["spec"]

    service = a_service(api=_TOLD, admission={"requestTimeout": "5m"})
    await world.extras.bring(Observation(service, {}, (), None, datetime.now(UTC)))

    assert world.cluster.objects[_POLICY]["spec"]["timeout"] != before["timeout"]


async def test_each_missing_kind_names_what_brings_it() -> None:
    """One does not stand in the way of another, and each comes with its own."""
    world = World()

    lacks = await world.bring(_TOLD, podMonitor=True)
    assert [lack.reason for lack in lacks] == ["KindMissing", "KindMissing"]
    policy, pool = (lack.message for lack in lacks)
    assert ("gateway.envoyproxy.io/v1alpha1" in policy, "Envoy Gateway" in policy) == (True, True)
    assert ("inference.networking.k8s.io/v1" in pool, "extension" in pool) == (True, True)
    assert _MONITOR in world.cluster.objects

    world.cluster.served_kinds = _BOTH | {"BackendTrafficPolicy"}
    world.clock.advance(61)
    assert await world.bring(_TOLD, podMonitor=True) == (lacks[1],)
    assert _POLICY in world.cluster.objects


async def test_a_cluster_without_the_kinds_is_asked_once_a_minute() -> None:
    """However many services ask, and however often they are looked at."""
    world = World(kinds=frozenset())
    await world.bring(podMonitor=True, rules=True)
    assert world.cluster.reads.count("get monitoring.coreos.com/v1") == 1

    world.clock.advance(5)
    await world.bring(podMonitor=True, rules=True)

    assert world.cluster.reads == []


async def test_a_refusal_is_told_and_tried_again_after_a_while() -> None:
    """A role of an older chart forbids it: the service goes on, and the calls are few."""
    world = World()
    world.cluster.refusals["PodMonitor"] = WriteRefusedError("apply", "podmonitors", 403, "no")

    (lack,) = await world.bring(podMonitor=True)
    assert lack.reason == "WriteRefused"

    world.clock.advance(5)
    assert await world.bring(podMonitor=True) == (lack,)
    assert (world.cluster.writes, world.cluster.reads) == ([], [])

    world.cluster.refusals.clear()
    world.clock.advance(60)
    assert await world.bring(podMonitor=True) == ()


@pytest.mark.parametrize("which", [_ADDRESSES, _MONITOR], ids=lambda which: which[0])
async def test_a_strangers_object_is_left_alone(which: tuple[str, str]) -> None:
    """Nor does it stand in the way of the others."""
    world = World()
    theirs = {"kind": which[0], "metadata": {"name": which[1], "namespace": "default"}}
    world.cluster.objects[which] = theirs

    (lack,) = await world.bring(podMonitor=True, rules=True)
    assert lack.reason == "NameTaken"
    assert _RULES in world.cluster.objects

    await world.bring()
    assert world.cluster.objects[which] == theirs


async def test_an_orphaned_monitor_is_adopted() -> None:
    """As every other child."""
    world = World()
    await world.bring(podMonitor=True)
    world.cluster.objects[_MONITOR]["metadata"] |= {
        "ownerReferences": [],
        "labels": labels("quick"),
    }
    world.extras = world.restarted()

    assert await world.bring(podMonitor=True) == ()
    assert world.cluster.objects[_MONITOR]["metadata"]["ownerReferences"] != []


async def test_a_service_made_again_begins_anew() -> None:
    """What is remembered of its predecessor's children says nothing about its own."""
    world = World()
    await world.bring(podMonitor=True)
    for which in (_MONITOR, _ADDRESSES):
        del world.cluster.objects[which]
    service = a_service(monitoring={"podMonitor": True})
    metadata = service.metadata.model_copy(update={"uid": "new"})
    world.cluster.objects["InferenceService", "quick"]["metadata"]["uid"] = "new"
    again = Observation(
        service.model_copy(update={"metadata": metadata}), {}, (), None, datetime.now(UTC)
    )

    assert await world.extras.bring(again) == ()
    (owner,) = world.cluster.objects[_MONITOR]["metadata"]["ownerReferences"]
    assert owner["uid"] == "new"
