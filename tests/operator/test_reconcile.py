"""One look at one service: a refusal is told, a namespace that is going is left in peace."""

import pytest

from paceline_operator.errors import ApiError, LeavingError, TerminatingError, WriteRefusedError
from paceline_operator.reconcile import Reconciler
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.one_service import OneService
from paceline_testing.reconcilers import a_reconciler
from paceline_testing.services import a_live_service

_KEY = "default/quick"
_INVALID = WriteRefusedError("apply", "deployments/quick", 422, "it is invalid")
_MAY_NOT = WriteRefusedError("apply", "deployments/quick", 403, "you may not")
_GOING = TerminatingError("apply", "deployments/quick", 403, "it is being terminated")


def _reconciler(cluster: FakeCluster, clock: ManualClock) -> Reconciler:
    live = a_live_service()
    cluster.objects["InferenceService", "quick"] = live
    return a_reconciler(cluster, clock, OneService(live))


@pytest.mark.parametrize(("refusal", "tells"), [(_INVALID, True), (_GOING, False)])
async def test_a_refusal_is_told_unless_the_namespace_goes(
    refusal: ApiError, *, tells: bool
) -> None:
    """A person can mend a manifest; in a namespace that is deleted there is nothing to do."""
    cluster = FakeCluster(refusals={"Deployment": refusal})

    outcome = await _reconciler(cluster, ManualClock()).reconcile(_KEY)

    assert outcome.service is not None
    assert (outcome.refusal is refusal) is tells
    assert ("apply InferenceService/quick/status" in cluster.writes) is tells
    assert any(write.startswith("create Event") for write in cluster.writes) is tells


async def test_a_right_that_is_missing_for_a_moment_is_no_reason_to_stall() -> None:
    """A role that comes after the object, or a webhook that starts: nobody is called for it."""
    cluster, clock = FakeCluster(refusals={"Deployment": _MAY_NOT}), ManualClock()
    reconciler = _reconciler(cluster, clock)

    first = await reconciler.reconcile(_KEY)
    clock.advance(9)
    second = await reconciler.reconcile(_KEY)

    assert first.refusal is second.refusal is _MAY_NOT  # both are tried again
    assert "apply InferenceService/quick/status" not in cluster.writes
    clock.advance(2)
    await reconciler.reconcile(_KEY)
    assert "apply InferenceService/quick/status" in cluster.writes


async def test_what_the_collector_has_yet_to_take_is_no_reason_to_stall() -> None:
    """A service is deleted and made again in one breath."""
    cluster, clock = FakeCluster(), ManualClock()
    reconciler = _reconciler(cluster, clock)
    await reconciler.reconcile(_KEY)
    for live in cluster.objects.values():
        for owner in live["metadata"].get("ownerReferences", ()):
            owner["uid"] = "an earlier one"
    cluster.writes.clear()
    clock.advance(3600)

    first = await reconciler.reconcile(_KEY)
    cluster.objects = {
        which: live
        for which, live in cluster.objects.items()
        if "ownerReferences" not in live["metadata"]
    }
    second = await reconciler.reconcile(_KEY)

    assert isinstance(first.refusal, LeavingError)
    assert second.refusal is None
    assert ("Deployment", "quick") in cluster.objects
    assert not [write for write in cluster.writes if "status" in write]


async def test_a_right_that_comes_and_goes_is_given_time_again() -> None:
    cluster, clock = FakeCluster(refusals={"Deployment": _MAY_NOT}), ManualClock()
    reconciler = _reconciler(cluster, clock)
    await reconciler.reconcile(_KEY)
    clock.advance(9)
    cluster.refusals.clear()
    assert (await reconciler.reconcile(_KEY)).refusal is None
    cluster.writes.clear()
    cluster.refusals["Deployment"] = _MAY_NOT
    clock.advance(3600)
    cluster.objects.pop(("Deployment", "quick"))

    assert (await reconciler.reconcile(_KEY)).refusal is _MAY_NOT
    assert "apply InferenceService/quick/status" not in cluster.writes


@pytest.mark.parametrize("uid", [None, "another"])
async def test_nothing_is_made_for_a_service_that_only_the_watch_remembers(
    uid: str | None,
) -> None:
    """The collector would delete each child, and the operator make it again."""
    cluster = FakeCluster()
    reconciler = _reconciler(cluster, ManualClock())
    ghost = cluster.objects.pop(("InferenceService", "quick"))
    if uid is not None:
        again = ghost["metadata"] | {"uid": uid}
        cluster.objects["InferenceService", "quick"] = ghost | {"metadata": again}

    outcome = await reconciler.reconcile(_KEY)

    assert outcome.service is None
    assert cluster.writes == []


_DOWN = ApiError("apply", "deployments/quick", 500, "failed calling webhook: no endpoints")


async def test_an_error_that_lasts_is_told_and_nobody_is_called_for_it() -> None:
    """A webhook that is down ends by itself: the service is reconciling, not stalled."""
    cluster, clock = FakeCluster(refusals={"Deployment": _DOWN}), ManualClock()
    reconciler = _reconciler(cluster, clock)
    with pytest.raises(ApiError):
        await reconciler.reconcile(_KEY)
    assert "apply InferenceService/quick/status" not in cluster.writes
    clock.advance(11)

    with pytest.raises(ApiError):
        await reconciler.reconcile(_KEY)

    told = {
        found["type"]: (found["status"], found["reason"], found["message"])
        for found in cluster.objects["InferenceService", "quick"]["status"]["conditions"]
    }
    failed = ("Progressing", "apply deployments/quick: 500 failed calling webhook: no endpoints")
    assert told["Ready"] == told["WorkloadAvailable"] == ("False", *failed)
    assert told["Reconciling"] == ("True", *failed)
    assert told["Stalled"][0] == "False"


async def test_adopted_orphans_are_told_in_one_event() -> None:
    """Once: the next look adopts nothing."""
    cluster, clock = FakeCluster(), ManualClock()
    reconciler = _reconciler(cluster, clock)
    await reconciler.reconcile(_KEY)
    for live in cluster.objects.values():
        live["metadata"].pop("ownerReferences", None)
    again = _reconciler(cluster, clock)

    await again.reconcile(_KEY)
    await again.reconcile(_KEY)

    events = [one for (kind, _), one in cluster.objects.items() if kind == "Event"]
    (adoption,) = [event for event in events if event["reason"] == "OrphansAdopted"]
    assert adoption["type"] == "Normal"
    assert "Deployment quick" in adoption["note"]
    assert "NetworkPolicy quick" in adoption["note"]


async def test_where_others_wait_a_new_service_is_told_of_later() -> None:
    """Its status would say that nothing is there yet; the next look has more to tell."""
    cluster, clock = FakeCluster(), ManualClock()
    reconciler = _reconciler(cluster, clock)

    first = await reconciler.reconcile(_KEY, may_tell_later=True)
    has_deployment = ("Deployment", "quick") in cluster.objects
    was_told = "apply InferenceService/quick/status" in cluster.writes
    watched = reconciler.observer.watched
    assert isinstance(watched, OneService)
    not_watched = {"InferenceService", "Secret"}
    watched.found.extend(
        live for (kind, _), live in cluster.objects.items() if kind not in not_watched
    )
    second = await reconciler.reconcile(_KEY, may_tell_later=True)

    assert has_deployment
    assert (first.is_told, was_told) == (False, False)
    assert second.is_told
    assert "apply InferenceService/quick/status" in cluster.writes
