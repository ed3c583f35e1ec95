"""Children are written when they differ, by the leader, and never taken from others."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from paceline_api.labels import Manifest
from paceline_operator.apply import Applier
from paceline_operator.errors import GoneError, NameTakenError, NotLeadingError
from paceline_operator.observe import Observation
from paceline_operator.render.children import Children, Surroundings, children
from paceline_operator.token_key import TokenKey
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.services import a_live_service, a_service

_KEY = TokenKey(b"k" * 32)
_AROUND = Surroundings("engine:1", "sidecar:1", "paceline")


def _a_cluster() -> FakeCluster:
    """With the service, and nothing else."""
    return FakeCluster({("InferenceService", "quick"): a_live_service()})


async def _lead() -> None:
    """Hold the Lease."""


def _observed(**spec: object) -> Observation:
    service = a_service(**spec)  # type: ignore[arg-type]  # any field of the spec
    return Observation(service, children={}, pods=(), report=None, now=datetime.now(UTC))


def _rendered(observed: Observation) -> Children:
    return children(observed.service, _AROUND, "hash")


async def test_an_unchanged_world_is_not_written_again() -> None:
    """Five seconds later, and for ever."""
    cluster = _a_cluster()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    observed = _observed()
    found = await applier.apply(observed, _rendered(observed))
    num_writes = len(cluster.writes)

    await applier.apply(replace(observed, children=found), _rendered(observed))

    assert num_writes == 5
    assert len(cluster.writes) == num_writes


async def test_new_children_cost_one_read_and_a_write_each_the_deployment_last() -> None:
    """A thousand services at once are as many times less for the API server."""
    cluster, observed = _a_cluster(), _observed()

    await Applier(cluster, _KEY, _lead, ManualClock()).apply(observed, _rendered(observed))

    assert cluster.reads == ["get InferenceService/quick"]
    assert all(write.startswith("create ") for write in cluster.writes)
    assert cluster.writes[-1] == "create Deployment/quick"


async def test_after_a_restart_nothing_is_written_or_read() -> None:
    """What was applied is told by the objects themselves."""
    cluster, observed = _a_cluster(), _observed()
    before = Applier(cluster, _KEY, _lead, ManualClock())
    found = await before.apply(observed, _rendered(observed))
    cluster.is_reachable = False

    restarted = Applier(cluster, _KEY, _lead, ManualClock())
    assert await restarted.apply(replace(observed, children=found), _rendered(observed)) == found


async def test_what_the_api_server_keeps_otherwise_is_written_once() -> None:
    """It writes a quantity in its own way, or a webhook puts a container beside ours."""
    cluster, observed = _a_cluster(), _observed()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    found = await applier.apply(observed, _rendered(observed))
    kept = found["ConfigMap", "quick-runtime"] | {"data": {"runtime.json": "as webhooks like it"}}

    class Altering(FakeCluster):
        async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
            await super().apply(manifest, subresource=subresource)
            return kept

    altering = Altering(cluster.objects)
    restarted = Applier(altering, _KEY, _lead, ManualClock())
    observed = replace(observed, children=found | {("ConfigMap", "quick-runtime"): kept})
    for _ in range(3):
        await restarted.apply(observed, _rendered(observed))

    assert altering.writes == ["apply ConfigMap/quick-runtime"]


async def test_a_status_is_no_reason_to_write() -> None:
    """The Deployment's own controller writes it all the time."""
    cluster = _a_cluster()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    observed = _observed()
    found = await applier.apply(observed, _rendered(observed))
    deployment = found["Deployment", "quick"]
    found["Deployment", "quick"] = deployment | {"status": {"replicas": 1}}
    cluster.writes.clear()

    await applier.apply(replace(observed, children=found), _rendered(observed))

    assert cluster.writes == []


async def test_drift_is_written_over() -> None:
    """Whoever changed it."""
    cluster = _a_cluster()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    observed = _observed()
    found = await applier.apply(observed, _rendered(observed))
    found["ConfigMap", "quick-runtime"] |= {"data": {"runtime.json": "{}"}}
    cluster.writes.clear()

    await applier.apply(replace(observed, children=found), _rendered(observed))

    assert cluster.writes == ["apply ConfigMap/quick-runtime"]


async def test_a_child_that_is_no_longer_wanted_is_deleted() -> None:
    """One replica needs no disruption budget."""
    cluster = _a_cluster()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    two = _observed(replicas=2)
    found = await applier.apply(two, _rendered(two))
    assert ("PodDisruptionBudget", "quick") in found
    one = replace(_observed(replicas=1), children=found)

    found = await applier.apply(one, _rendered(one))

    assert ("PodDisruptionBudget", "quick") not in found
    assert "delete PodDisruptionBudget/quick" in cluster.writes


async def test_an_object_of_somebody_else_is_not_taken() -> None:
    """Nor deleted."""
    cluster = _a_cluster()
    theirs = {"kind": "Service", "metadata": {"name": "quick", "namespace": "default"}}
    cluster.objects["Service", "quick"] = theirs
    observed = _observed()

    with pytest.raises(NameTakenError, match="Service quick exists and is not owned"):
        await Applier(cluster, _KEY, _lead, ManualClock()).apply(observed, _rendered(observed))

    assert cluster.objects["Service", "quick"] == theirs


async def test_orphans_are_adopted_as_they_are() -> None:
    """The service was deleted with `--cascade=orphan` and made again: pods serve on."""
    cluster, before = _a_cluster(), _observed(replicas=2)
    first = Applier(cluster, _KEY, _lead, ManualClock())
    await first.secure_token(before.service, again_after_s=math.inf)
    found = await first.apply(before, _rendered(before))
    for live in cluster.objects.values():
        live["metadata"].pop("ownerReferences", None)
    again = a_service(replicas=2)
    again = again.model_copy(update={"metadata": again.metadata.model_copy(update={"uid": "new"})})
    cluster.objects["InferenceService", "quick"]["metadata"]["uid"] = "new"
    applier, observed = Applier(cluster, _KEY, _lead, ManualClock()), replace(before, service=again)

    await applier.secure_token(again, again_after_s=math.inf)
    adopted = await applier.apply(observed, _rendered(observed))

    # The Secret is not touched: what it holds is right, and it cannot be read or patched.
    assert applier.token(again) == first.token(before.service)
    assert adopted["Deployment", "quick"]["spec"] == found["Deployment", "quick"]["spec"]
    for which in adopted:
        (owner,) = cluster.objects[which]["metadata"]["ownerReferences"]
        assert owner["uid"] == "new"
    assert sorted(applier.take_adopted(again.key)) == sorted(f"{kind} {of}" for kind, of in adopted)
    assert applier.take_adopted(again.key) == ()
    assert first.take_adopted(again.key) == ()


@pytest.mark.parametrize("going", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"uid": "new"}])
async def test_a_service_that_is_going_adopts_nothing(going: dict[str, str]) -> None:
    """The watch is late: an orphan that got this owner back would be collected."""
    cluster, observed = _a_cluster(), _observed()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    found = await applier.apply(observed, _rendered(observed))
    for live in found.values():
        del live["metadata"]["ownerReferences"]
    cluster.objects["InferenceService", "quick"]["metadata"] |= going
    cluster.writes.clear()

    with pytest.raises(GoneError):
        await applier.apply(replace(observed, children=found), _rendered(observed))

    assert cluster.writes == []


async def test_an_orphan_that_is_not_wanted_is_deleted() -> None:
    """A disruption budget from when there were two pods."""
    cluster, two = _a_cluster(), _observed(replicas=2)
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    found = await applier.apply(two, _rendered(two))
    del found["PodDisruptionBudget", "quick"]["metadata"]["ownerReferences"]
    one = replace(_observed(replicas=1), children=found)

    await applier.apply(one, _rendered(one))

    assert ("PodDisruptionBudget", "quick") not in cluster.objects


async def test_who_does_not_lead_writes_nothing() -> None:
    """The fence stands in front of every write, not only of the first."""
    cluster = _a_cluster()
    checks = 0

    async def lose_after_two() -> None:
        nonlocal checks
        checks += 1
        if checks > 2:
            raise NotLeadingError("gone")

    observed = _observed()
    with pytest.raises(NotLeadingError):
        await Applier(cluster, _KEY, lose_after_two, ManualClock()).apply(
            observed, _rendered(observed)
        )

    assert len(cluster.writes) == 2


class Paused(FakeCluster):
    """Lets something happen between the decision to write and the write, as a pause would."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().apply(manifest, subresource=subresource)


def _scaled(cluster: FakeCluster) -> int:
    replicas: int = cluster.objects["Deployment", "quick"]["spec"]["replicas"]
    return replicas


async def test_a_leader_that_was_paused_does_not_undo_its_successors_write() -> None:
    """It had asked before the pause whether it leads; the API server refuses the older version."""
    cluster = Paused({("InferenceService", "quick"): a_live_service()})
    leads = True

    async def check() -> None:
        if not leads:
            raise NotLeadingError("gone")

    paused, successor = (
        Applier(cluster, _KEY, check, ManualClock()),
        Applier(cluster, _KEY, _lead, ManualClock()),
    )
    observed = _observed(replicas=2)
    found = await paused.apply(observed, _rendered(observed))
    stale, fresh = _observed(replicas=3), _observed(replicas=5)

    async def take_over() -> None:
        nonlocal leads
        leads = False
        await successor.apply(replace(fresh, children=found), _rendered(fresh))

    cluster.meanwhile = take_over
    with pytest.raises(NotLeadingError):
        await paused.apply(replace(stale, children=found), _rendered(stale))

    assert _scaled(cluster) == 5


async def test_a_watch_that_is_late_costs_one_read() -> None:
    """The Deployment's own controller was faster than the news of it."""
    cluster = _a_cluster()
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    observed = _observed(replicas=2)
    found = await applier.apply(observed, _rendered(observed))
    await cluster.apply(cluster.objects["Deployment", "quick"] | {"status": {"replicas": 1}})
    more = _observed(replicas=3)

    await applier.apply(replace(more, children=found), _rendered(more))

    assert _scaled(cluster) == 3


async def test_a_token_is_made_without_reading_a_secret() -> None:
    """Whoever may read Secrets everywhere owns the cluster."""
    cluster = _a_cluster()
    service = _observed().service
    applier = Applier(cluster, _KEY, _lead, ManualClock())

    await applier.secure_token(service, again_after_s=0)

    secret = cluster.objects["Secret", "quick-runtime-token"]
    assert secret["stringData"]["token"] == applier.token(service)
    assert cluster.writes == ["create Secret/quick-runtime-token"]
    assert not [read for read in cluster.reads if "Secret" in read]


async def test_a_secret_that_is_there_is_left_as_it_is() -> None:
    """It may be a stranger's, or hold the token of an older version: the pods will say."""
    cluster, clock = _a_cluster(), ManualClock()
    theirs = {"kind": "Secret", "metadata": {"name": "quick-runtime-token"}, "data": {}}
    cluster.objects["Secret", "quick-runtime-token"] = theirs
    applier = Applier(cluster, _KEY, _lead, clock)

    await applier.secure_token(_observed().service, again_after_s=0)
    clock.advance(3600)
    await applier.secure_token(_observed().service, again_after_s=15)

    assert cluster.objects["Secret", "quick-runtime-token"] == theirs
    assert cluster.writes == []


async def test_a_known_secret_costs_no_call() -> None:
    """Every five seconds, for every service."""
    cluster = _a_cluster()
    service = _observed().service
    applier = Applier(cluster, _KEY, _lead, ManualClock())
    await applier.secure_token(service, again_after_s=0)
    cluster.is_reachable = False

    await applier.secure_token(service, again_after_s=math.inf)


async def test_a_deleted_secret_comes_back_once_pods_miss_it() -> None:
    """With the token that running pods know, and asked for no more often than every 15 seconds."""
    cluster, clock = _a_cluster(), ManualClock()
    service = _observed().service
    applier = Applier(cluster, _KEY, _lead, clock)
    await applier.secure_token(service, again_after_s=0)
    del cluster.objects["Secret", "quick-runtime-token"]

    clock.advance(14)
    await applier.secure_token(service, again_after_s=15)
    is_early = ("Secret", "quick-runtime-token") in cluster.objects
    clock.advance(1)
    await applier.secure_token(service, again_after_s=15)

    secret = cluster.objects["Secret", "quick-runtime-token"]
    assert not is_early
    assert secret["stringData"]["token"] == applier.token(service)


async def test_a_service_made_again_gets_its_secret_at_once() -> None:
    """The collector takes the one before, and its own is a new try."""
    cluster, clock = _a_cluster(), ManualClock()
    before = _observed().service
    again = before.model_copy(
        update={"metadata": before.metadata.model_copy(update={"uid": "another"})}
    )
    applier = Applier(cluster, _KEY, _lead, clock)
    await applier.secure_token(before, again_after_s=0)
    del cluster.objects["Secret", "quick-runtime-token"]
    cluster.objects["InferenceService", "quick"]["metadata"]["uid"] = "another"

    await applier.secure_token(again, again_after_s=0)

    secret = cluster.objects["Secret", "quick-runtime-token"]
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["uid"] == "another"


async def test_no_token_is_made_for_a_service_that_is_gone() -> None:
    """The watch may be behind."""
    cluster = FakeCluster()

    with pytest.raises(GoneError):
        await Applier(cluster, _KEY, _lead, ManualClock()).secure_token(
            _observed().service, again_after_s=0
        )

    assert cluster.writes == []
