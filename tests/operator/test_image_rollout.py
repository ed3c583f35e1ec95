"""New images come to a service on one pod first, and to one service at a time."""

from typing import Any

import pytest

from paceline_api.labels import CANARY, SERVICE_LABEL
from paceline_testing.rolling_world import Outcome, RollingWorld

_FOLLOWS = {"imagePolicy": "FollowOperator"}
_HOUR = 3600.0


def _settled(*names: str, **spec: Any) -> RollingWorld:
    """Services that serve with the images of the day."""
    world = RollingWorld()
    for name in names or ("quick",):
        world.serve(name, **({"replicas": 2} | spec))
    world.run(200)
    return world


def _condition(world: RollingWorld, name: str, kind: str) -> tuple[str, str]:
    conditions = world.status(name).conditions or ()
    return next((each.status, each.reason) for each in conditions if each.type == kind)


def test_an_upgrade_of_the_operator_changes_no_pod() -> None:
    """Images are recorded with the service: neither the Deployment nor the pods are touched."""
    world = _settled()
    before = world.cluster.objects["Deployment", "quick"]["metadata"]["generation"]

    world.restart(engine="engine:2", sidecar="sidecar:2")
    world.cluster.writes.clear()
    world.run(_HOUR)

    assert world.cluster.objects["Deployment", "quick"]["metadata"]["generation"] == before
    assert world.serving("quick") == ["engine:1", "engine:1"]
    assert world.rollout("quick") is None


@pytest.mark.parametrize("lost", ["status", "Deployment"])
def test_either_record_is_enough(lost: str) -> None:
    """A restored object has no status, and a Deployment may be deleted."""
    world = _settled()
    if lost == "status":
        world.cluster.objects["InferenceService", "quick"].pop("status")
    else:
        world.cluster.objects.pop(("Deployment", "quick"))

    world.restart(engine="engine:2", sidecar="sidecar:2")
    world.run(200)

    images = world.status("quick").images
    assert images is not None
    assert (images.engine, images.sidecar) == ("engine:1", "sidecar:1")
    assert world.engine("quick") == "engine:1"


def test_a_new_service_gets_the_images_of_the_day() -> None:
    world = _settled()

    world.restart(engine="engine:2", sidecar="sidecar:2")
    world.serve("fresh")
    world.run(200)

    assert world.serving("fresh") == ["engine:2"]
    assert world.serving("quick") == ["engine:1", "engine:1"]


def test_an_image_that_somebody_writes_into_the_deployment_is_no_record() -> None:
    world = _settled()
    deployment = world.cluster.objects["Deployment", "quick"]
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs:1"

    world.run(100)

    assert world.engine("quick") == "engine:1"
    assert world.rollout("quick") is None


def test_writing_the_image_out_that_the_pods_have_restarts_nothing() -> None:
    """`engine.image` is in the hash of the template; who pins what runs changes nothing."""
    world = _settled()
    before = world.cluster.objects["Deployment", "quick"]["spec"]

    world.serve("quick", replicas=2, engine={"image": "engine:1"})
    world.run(200)
    named = world.cluster.objects["Deployment", "quick"]["spec"]
    world.serve("quick", replicas=2)
    world.run(200)

    assert named == before
    assert world.cluster.objects["Deployment", "quick"]["spec"] == before
    assert _condition(world, "quick", "Ready")[0] == "True"


def test_a_named_image_serves_on_one_pod_before_it_goes_on() -> None:
    world = _settled()

    world.serve("quick", replicas=2, engine={"image": "mine:2"}, rollout={"canarySeconds": 300})
    world.run(100)
    canary = world.cluster.objects["Deployment", "quick-canary"]
    tried = sorted(world.serving("quick"))
    status = world.status("quick")

    assert tried == ["engine:1", "engine:1", "mine:2"]
    assert world.phase("quick") == "Canary"
    assert (status.replicas, status.updated_replicas) == (3, 1)
    assert status.selector == f"{SERVICE_LABEL}=quick"
    assert _condition(world, "quick", "Ready")[0] == "False"
    assert canary["spec"]["template"]["metadata"]["labels"][SERVICE_LABEL] == "quick"
    assert canary["spec"]["selector"]["matchLabels"] == {SERVICE_LABEL: "quick", CANARY: "true"}

    world.run(600)
    status = world.status("quick")
    assert world.serving("quick") == ["mine:2", "mine:2"]
    assert world.engine("quick-canary") is None
    assert world.phase("quick") == "Done"
    assert (status.replicas, status.updated_replicas) == (2, 2)
    assert _condition(world, "quick", "Ready")[0] == "True"
    assert world.events().count("RolloutNoDifference") == 1


@pytest.mark.parametrize(
    ("outcome", "verdict", "within_s"),
    [("worse", "Worse", 300), ("crash", "Failed", 120), ("pull", "Failed", 200),
     ("never", "Failed", 400)],
)  # fmt: skip
def test_a_bad_image_goes_back_by_itself(outcome: Outcome, verdict: str, within_s: float) -> None:
    """The old pods serve all the while; it is not tried again until another one is wanted."""
    world = _settled()
    world.outcomes["mine:2"] = outcome
    rollout = {"startupSeconds": 200}

    world.serve("quick", replicas=2, engine={"image": "mine:2"}, rollout=rollout)
    served = []
    for _ in range(int(within_s / 10)):
        world.turn_over()
        served.append(world.serving("quick").count("engine:1"))
    first = world.rollout("quick")
    world.restart()
    world.run(_HOUR)

    assert min(served) == 2
    assert first is not None
    assert (first.phase, first.verdict) == ("RolledBack", verdict)
    assert world.rollout("quick") == first
    assert world.serving("quick") == ["engine:1", "engine:1"]
    assert world.engine("quick-canary") is None
    assert _condition(world, "quick", "Ready") == ("False", "RolledBack")
    assert _condition(world, "quick", "Stalled") == ("True", "RolledBack")
    assert world.events().count(f"Rollout{verdict}") == 1


def test_the_same_image_is_tried_again_after_another_was_wanted() -> None:
    world = _settled()
    world.outcomes["mine:2"] = "crash"
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(300)
    assert world.phase("quick") == "RolledBack"

    world.serve("quick", replicas=2)
    world.run(50)
    assert world.rollout("quick") is None
    assert _condition(world, "quick", "Ready")[0] == "True"
    world.outcomes["mine:2"] = "good"
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(1800)
    assert world.serving("quick") == ["mine:2", "mine:2"]


def test_who_follows_the_operator_gets_both_images_and_stays_ready() -> None:
    """The spec has not changed: its pods serve it all the while."""
    world = _settled(rollout=_FOLLOWS)
    world.restart(engine="engine:2", sidecar="sidecar:2")

    ready = []
    for _ in range(150):
        world.turn_over()
        if world.phase("quick") == "Canary":
            ready.append(_condition(world, "quick", "Ready")[0])

    images = world.status("quick").images
    assert set(ready) == {"True"}
    assert images is not None
    assert (images.engine, images.sidecar) == ("engine:2", "sidecar:2")
    assert world.serving("quick") == ["engine:2", "engine:2"]


def test_an_operators_images_that_are_worse_stall_nothing() -> None:
    world = _settled(rollout=_FOLLOWS)
    world.outcomes["engine:2"] = "worse"
    world.restart(engine="engine:2")
    world.run(600)

    assert world.phase("quick") == "RolledBack"
    assert _condition(world, "quick", "Ready")[0] == "True"
    assert _condition(world, "quick", "Stalled")[0] == "False"
    world.restart(engine="engine:3")
    world.run(2000)
    assert world.serving("quick") == ["engine:3", "engine:3"]


def test_pinned_again_the_sidecar_stays_what_it_has_become() -> None:
    world = _settled(rollout=_FOLLOWS)
    world.restart(engine="engine:2", sidecar="sidecar:2")
    world.run(2000)
    world.serve("quick", replicas=2)
    world.restart(engine="engine:3", sidecar="sidecar:3")
    world.run(2000)

    images = world.status("quick").images
    assert images is not None
    assert (images.engine, images.sidecar) == ("engine:2", "sidecar:2")


def test_one_service_at_a_time() -> None:
    """The others wait and say for whom; an image that is bad spoils one pod in the cluster."""
    names = ("a", "b", "c")
    quick = {"canarySeconds": 120, "startupSeconds": 200}
    world = _settled(*names, rollout=_FOLLOWS | quick)
    world.restart(engine="engine:2")

    at_once, reasons = [], set()
    for _ in range(300):
        world.turn_over()
        at_once.append(sum(world.phase(name) in {"Canary", "Rolling"} for name in names))
        rollouts = [world.rollout(name) for name in names]
        reasons |= {each.reason for each in rollouts if each and each.phase == "Waiting"}
        if at_once[-1] == 1 and len(at_once) % 20 == 0:
            world.restart()  # another leader goes on from status

    assert max(at_once) == 1
    assert "waits for the rollout of default/a" in reasons
    assert all(world.serving(name) == ["engine:2", "engine:2"] for name in names)


def test_a_cold_change_alone_goes_out_as_ever() -> None:
    world = _settled()

    world.serve("quick", replicas=2, engine={"dtype": "Float32"})
    world.reconcile("quick")
    env = world.cluster.objects["Deployment", "quick"]["spec"]["template"]["spec"]["containers"]
    world.run(300)

    assert "float32" in str(env).lower()
    assert world.rollout("quick") is None
    assert world.serving("quick") == ["engine:1", "engine:1"]


def test_an_image_that_comes_with_a_cold_change_goes_out_with_it() -> None:
    """A difference could not be laid to the image."""
    world = _settled()

    world.serve("quick", replicas=2, engine={"dtype": "Float32", "image": "mine:2"})
    world.run(300)

    assert world.rollout("quick") is None
    assert world.serving("quick") == ["mine:2", "mine:2"]
    assert _condition(world, "quick", "Ready")[0] == "True"


@pytest.mark.parametrize("outcome", ["good", "worse"])
def test_a_cold_change_does_not_smuggle_an_image_past_its_trial(outcome: Outcome) -> None:
    """It goes out with the images that are proven; the trial begins anew."""
    world = _settled()
    world.outcomes["mine:2"] = outcome
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(60)
    assert world.phase("quick") == "Canary"

    world.serve("quick", replicas=2, engine={"image": "mine:2", "dtype": "Float32"})
    world.run(60)
    assert world.engine("quick") == "engine:1"
    world.run(2000)

    wanted = "mine:2" if outcome == "good" else "engine:1"
    assert world.serving("quick") == [wanted, wanted]


def test_without_replicas_new_images_wait_for_a_pod() -> None:
    """After an idle time the images come up that are known to serve."""
    world = _settled(rollout=_FOLLOWS)
    world.serve("quick", replicas=0, rollout=_FOLLOWS)
    world.run(100)
    world.restart(engine="engine:2")
    world.run(_HOUR)
    assert world.phase("quick") == "Waiting"

    world.serve("quick", replicas=1, rollout=_FOLLOWS)
    world.run(100)
    assert "engine:1" in world.serving("quick")
    world.run(2000)
    assert world.serving("quick") == ["engine:2"]


def test_a_service_that_goes_to_zero_takes_its_canary_along() -> None:
    world = _settled()
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(60)
    world.serve("quick", replicas=0, engine={"image": "mine:2"})
    world.run(100)

    assert world.serving("quick") == []
    assert world.engine("quick-canary") is None


def test_an_image_that_may_be_the_cure_is_not_held_up() -> None:
    """Where nothing serves, there is nothing to compare with and nothing to lose."""
    world = RollingWorld(outcomes={"broken:1": "crash"})
    world.serve("quick", engine={"image": "broken:1"})
    world.run(200)

    world.serve("quick", engine={"image": "mine:2"})
    world.run(100)

    assert world.serving("quick") == ["mine:2"]


def test_without_surge_the_canary_takes_the_place_of_a_pod() -> None:
    rollout = {"maxSurge": 0, "maxUnavailable": 1}
    world = _settled(rollout=rollout, replicas=3)

    world.serve("quick", replicas=3, engine={"image": "mine:2"}, rollout=rollout)
    most = 0
    for _ in range(30):
        world.turn_over()
        deployments = [world.cluster.objects.get(("Deployment", name)) for name in _BOTH]
        most = max(most, sum(each["spec"]["replicas"] for each in deployments if each))
    assert sorted(world.serving("quick")) == ["engine:1", "engine:1", "mine:2"]
    world.run(2000)

    assert most == 3
    assert world.serving("quick") == ["mine:2"] * 3


_BOTH = ("quick", "quick-canary")


@pytest.mark.parametrize("mode", ["Observe", "Fixed"])
def test_how_limits_are_tuned_does_not_matter(mode: str) -> None:
    """Telemetry is read in every mode, and the requests are compared."""
    world = _settled(tuning={"mode": mode})
    world.outcomes["mine:2"] = "worse"

    world.serve("quick", replicas=2, tuning={"mode": mode}, engine={"image": "mine:2"})
    world.run(400)

    assert world.phase("quick") == "RolledBack"


def test_paused_holds_a_rollout_where_it_stands_and_keeps_its_turn() -> None:
    world = _settled("a", "b")
    world.serve("a", replicas=2, engine={"image": "mine:2"})
    world.run(60)
    assert world.phase("a") == "Canary"

    world.serve("a", replicas=2, engine={"image": "mine:2"}, paused=True)
    world.serve("b", replicas=2, engine={"image": "mine:2"})
    world.run(_HOUR)
    assert (world.phase("a"), world.phase("b")) == ("Canary", "Waiting")
    assert "mine:2" in world.serving("a")

    world.serve("a", replicas=2, engine={"image": "mine:2"})
    world.run(_HOUR)
    assert world.serving("a") == world.serving("b") == ["mine:2", "mine:2"]


def test_a_rollout_that_gets_stuck_after_its_canary_goes_back() -> None:
    """The first pod found a node, the next ones do not start."""
    world = _settled()
    rollout = {"canarySeconds": 60, "startupSeconds": 300}
    world.serve("quick", replicas=2, engine={"image": "mine:2"}, rollout=rollout)
    world.run(120)
    assert world.phase("quick") == "Rolling"
    world.outcomes["mine:2"] = "never"
    world.run(_HOUR)

    assert world.phase("quick") == "RolledBack"
    assert set(world.serving("quick")) == {"engine:1"}
    assert world.engine("quick-canary") is None


def test_a_second_look_writes_nothing() -> None:
    """Also while a canary serves."""
    world = _settled()
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(100)
    world.cluster.writes.clear()

    for _ in range(3):
        world.reconcile("quick")

    kinds = {write.split()[1].partition("/")[0] for write in world.cluster.writes}
    assert not kinds & {"Deployment", "InferenceService", "Event"}


def test_a_definition_that_cannot_hold_the_phase_begins_no_rollout() -> None:
    """Without it a restarted operator would try bad images for ever; nor is status written on."""
    world = _settled(rollout=_FOLLOWS)
    world.cluster.unknown_status = {"rollout", "images"}
    world.restart(engine="engine:2")
    world.run(60)
    world.cluster.writes.clear()
    world.run(300)

    assert world.engine("quick-canary") is None
    assert world.serving("quick") == ["engine:1", "engine:1"]
    assert "apply InferenceService/quick/status" not in world.cluster.writes


def test_a_canary_that_was_left_behind_is_cleared_away() -> None:
    """As after `kubectl delete --cascade=orphan` of a service whose images were being tried."""
    world = _settled()
    world.serve("quick", replicas=2, engine={"image": "mine:2"})
    world.run(60)
    world.cluster.objects["InferenceService", "quick"].pop("status")
    for name in _BOTH:
        world.cluster.objects["Deployment", name]["metadata"].pop("ownerReferences")
    world.restart()
    world.serve("quick", replicas=2)

    world.run(200)

    assert world.engine("quick-canary") is None
    assert world.serving("quick") == ["engine:1", "engine:1"]
