"""Properties of a rollout of images, whatever happens around it."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_api.status import Images, RolloutStatus
from paceline_operator.rollout.step import CanaryPod, OldPods, Seen, Step, next_step, trial_name
from paceline_testing.rolling_world import Outcome, RollingWorld
from paceline_tuner.service_report import ExperimentReport, ExperimentVerdict

_OLD = Images(engine="engine:1", sidecar="sidecar:1")
_NEW = Images(engine="engine:2", sidecar="sidecar:1")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_PODS = OldPods(num_ready=2, is_settled=True, has_new_images=False)
_TICK = timedelta(seconds=30)
_NAMES = ("a", "b")
_VERDICTS: tuple[ExperimentVerdict, ...] = ("Running", "Better", "NoDifference", "Worse", "Aborted")


@dataclass(frozen=True)
class Happening:
    """What is seen at one look, beside the time and what the last step said."""

    num_ready: int
    is_settled: bool
    trouble: str
    is_late: bool
    canary: CanaryPod | None
    verdict: ExperimentVerdict | None
    ahead: str
    is_cold: bool
    replicas: int


_HAPPENINGS = st.builds(
    Happening,
    num_ready=st.integers(0, 2),
    is_settled=st.booleans(),
    trouble=st.sampled_from(["", "crashes"]),
    is_late=st.booleans(),
    canary=st.none() | st.builds(CanaryPod, st.booleans(), st.sampled_from(["", "crashes"])),
    verdict=st.none() | st.sampled_from(_VERDICTS),
    ahead=st.sampled_from(["", "", "default/other"]),
    is_cold=st.sampled_from([False, False, False, True]),
    replicas=st.sampled_from([0, 1, 2]),
)


def _seen(step: Step, what: Happening, now: datetime, **changes: object) -> Seen:
    rollout, trial = step.rollout, None
    if rollout is not None and what.verdict is not None:
        trial = ExperimentReport(trial_name(rollout), "Canary", what.verdict, "found")
    is_rolling = rollout is not None and rollout.phase == "Rolling"
    pods = OldPods(what.num_ready, what.is_settled, is_rolling, what.trouble, what.is_late)
    seen = Seen(
        wanted=_NEW,
        recorded=step.images,
        rollout=rollout,
        pods=pods,
        now=now,
        replicas=what.replicas,
        canary=what.canary,
        trial=trial,
        ahead=what.ahead,
        is_cold=what.is_cold,
    )
    return replace(seen, **changes)  # type: ignore[arg-type] # of Seen's own fields


@given(st.lists(_HAPPENINGS, max_size=40))
def test_no_image_goes_on_without_a_verdict_and_none_is_tried_again(
    happenings: list[Happening],
) -> None:
    """All pods get new images after Better or NoDifference, or where nothing was at risk."""
    step, now = Step(_OLD, None), _NOW
    for what in happenings:
        now += _TICK
        after = next_step(_seen(step, what, now))
        before, rollout = step.rollout, after.rollout
        if before is not None and before.phase == "RolledBack":
            assert after == step
        if rollout is not None and rollout.phase in {"Rolling", "Done"}:
            assert rollout.verdict in {"Better", "NoDifference"}
        if after.is_at_once:
            assert what.trouble
            assert not (what.num_ready and what.is_settled)
        if after.is_rolling and not step.is_rolling:
            assert not what.ahead
            assert what.num_ready
        step = after


@given(st.lists(_HAPPENINGS, max_size=40), st.sampled_from(["none", "hangs", "serves"]))
def test_every_rollout_ends(
    happenings: list[Happening], then: Literal["none", "hangs", "serves"]
) -> None:
    """Also where no traffic comes, no verdict ever does, and each operator begins anew."""
    step, now = Step(_OLD, None), _NOW
    for what in happenings:
        now += _TICK
        step = next_step(_seen(step, what, now))
    canary = {"none": None, "hangs": CanaryPod(is_ready=False), "serves": CanaryPod(is_ready=True)}

    for _ in range(400):
        now += _TICK
        quiet = Happening(2, True, "", False, canary[then], None, "", False, 2)
        step = next_step(_seen(step, quiet, now))

    assert not step.is_rolling
    assert step.rollout is None or step.rollout.phase in {"Done", "RolledBack"}


@given(_HAPPENINGS, st.sampled_from(["Waiting", "Canary", "Rolling", "RolledBack"]))
def test_who_wants_the_old_images_back_is_done_at_once(
    what: Happening, phase: Literal["Waiting", "Canary", "Rolling", "RolledBack"]
) -> None:
    rollout = RolloutStatus(phase=phase, images=_NEW, reason="r", since="2026-01-01T00:00:00Z")

    step = next_step(_seen(Step(_OLD, rollout), what, _NOW, wanted=_OLD))

    assert step == Step(_OLD, None)


_ACTIONS = st.one_of(
    st.tuples(st.just("reconcile"), st.sampled_from(_NAMES)),
    st.tuples(st.just("turn over"), st.sampled_from(_NAMES)),
    st.tuples(st.just("restart"), st.sampled_from(["engine:1", "engine:2", "engine:3"])),
    st.tuples(st.just("scale a"), st.sampled_from(["0", "1", "2"])),
    st.tuples(st.just("image of b"), st.sampled_from(["engine:1", "engine:2"])),
)


@settings(max_examples=6, deadline=None)
@given(
    st.lists(_ACTIONS, min_size=10, max_size=30),
    st.sampled_from(["good", "worse", "crash", "pull", "never"]),
)
def test_never_two_services_at_once_and_never_both_images_for_ever(
    actions: list[tuple[str, str]], outcome: Outcome
) -> None:
    """Operators come and go with other images, one service is scaled and one names images."""
    rollout = {"imagePolicy": "FollowOperator", "canarySeconds": 60, "startupSeconds": 120}
    world = RollingWorld(outcomes={"engine:2": outcome})
    for name in _NAMES:
        world.serve(name, replicas=2, rollout=rollout)
    world.run(100)

    for what, which in actions:
        if what == "reconcile":
            world.reconcile(which)
        elif what == "turn over":
            world.turn_over(30)
        elif what == "restart":
            world.restart(engine=which)
        elif what == "scale a":
            world.serve("a", replicas=int(which), rollout=rollout)
        else:
            world.serve("b", replicas=2, rollout=rollout, engine={"image": which})
        assert sum(world.phase(name) in {"Canary", "Rolling"} for name in _NAMES) <= 1
    world.run(3000, step_s=60)

    for name in _NAMES:
        assert world.phase(name) in {"", "Done", "RolledBack", "Waiting"}
        assert world.engine(f"{name}-canary") is None
        assert len(set(world.serving(name))) <= 1
        is_idle = world.engine(name) and not world.serving(name)
        assert world.phase(name) != "Waiting" or is_idle
