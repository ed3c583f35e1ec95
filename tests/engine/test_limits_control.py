"""The live limits: epochs, bounds, leases, and what is reported."""

import math
from typing import Any

import pytest

from paceline_engine.engine.control import LimitsControl
from paceline_engine.pacing import NoPacer, make_pacer
from paceline_testing.engines import EngineUnderTest, a_capacity, a_model_info, a_submit
from paceline_wire import Coefficients, LimitsState, SetLimits
from paceline_wire.limits import Limits


def a_control(limits: Limits | None = None) -> LimitsControl:
    return LimitsControl(limits or Limits(8, 64), a_capacity())


def change(control: LimitsControl, *, now: float = 0.0, **fields: Any) -> LimitsState:
    wanted = SetLimits(call=7, **{"epoch": control.epoch + 1, **fields})
    return control.change(wanted, now=now, next_step=100, decodes=0)


def test_a_subset_changes_and_the_rest_stays() -> None:
    """A tuner sets what it decided, nothing else."""
    control = a_control()

    state = change(control, token_budget=32, step_target_ms=20.0)

    assert control.limits == Limits(8, 32, 20.0)
    assert (state.call, state.epoch, state.since_step, state.error) == (7, 1, 100, None)
    assert state.clamped == []


def test_the_step_target_can_be_cleared() -> None:
    """Absent means unchanged, so no target needs a word of its own."""
    control = a_control(Limits(8, 64, 20.0))

    change(control, token_budget=32)
    assert control.limits.step_target_ms == 20.0
    change(control, clear_step_target=True)
    assert control.limits.step_target_ms is None


@pytest.mark.parametrize("pace", ["pace_tpot", "batch_step_target"])
def test_a_pace_can_be_cleared(pace: str) -> None:
    """As the step target, and without touching it."""
    control = a_control(Limits(8, 64, 20.0))

    assert getattr(change(control, **{f"{pace}_ms": 30.0}).effective, f"{pace}_ms") == 30.0
    change(control, token_budget=32)
    assert getattr(control.limits, f"{pace}_ms") == 30.0
    change(control, **{f"clear_{pace}": True})
    assert getattr(control.limits, f"{pace}_ms") is None
    assert control.limits.step_target_ms == 20.0


def test_what_capacity_forbids_is_clamped_and_reported() -> None:
    """No limit selects what was not allocated."""
    control = a_control()

    state = change(control, max_batch_size=100, token_budget=1000)

    assert (state.effective.max_batch_size, state.effective.token_budget) == (8, 64)
    assert (state.requested.max_batch_size, state.requested.token_budget) == (100, 1000)
    assert state.clamped == ["max_batch_size", "token_budget"]


def test_a_budget_below_the_batch_size_is_raised_to_it() -> None:
    """One token for each row, or decoding would starve."""
    state = change(a_control(), max_batch_size=6, token_budget=2)

    assert state.effective.token_budget == 6
    assert state.clamped == ["token_budget"]


def test_an_old_epoch_changes_nothing() -> None:
    """The message of a tuner that was replaced may arrive late."""
    control = a_control()
    change(control, epoch=5, token_budget=32)

    state = change(control, epoch=4, token_budget=16, lease_s=10.0)

    assert control.limits.token_budget == 32
    assert state.error == "epoch must be at least 5, which holds, got 4"
    assert state.lease_expires_at is None


def test_an_equal_epoch_renews_the_lease_and_changes_nothing() -> None:
    """A tuner that has nothing to change says that it is still there."""
    control = a_control()
    change(control, epoch=5, token_budget=32, lease_s=10.0, now=0.0)

    state = change(control, epoch=5, token_budget=16, lease_s=10.0, now=7.0)

    assert state.error is None
    assert state.effective.token_budget == 32
    assert state.lease_expires_at == 17.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_batch_size", 0),
        ("token_budget", -1),
        ("step_target_ms", 0.0),
        ("step_target_ms", float("nan")),
        ("pace_tpot_ms", -1.0),
        ("batch_step_target_ms", 0.0),
        ("lease_s", float("inf")),
        ("interactive_share", 1.5),
        ("batch_share", -0.1),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(field: str, value: float) -> None:
    """In a sentence that names the field; nothing else of the message is applied either."""
    control = a_control()

    state = change(control, **{"token_budget": 32, field: value})

    assert field in str(state.error)
    assert str(value) in str(state.error)
    assert control.limits == Limits(8, 64)


@pytest.mark.parametrize(
    ("coefficients", "field"),
    [
        (Coefficients([1.0] * 4, 256), "theta"),
        (Coefficients([1.0, 1.0, -1.0, 1.0, 1.0], 256), "theta"),
        (Coefficients([1.0, 1.0, 1.0, 1.0, math.inf], 256), "theta"),
        (Coefficients([0.0, 0.0, 1.0, 1.0, 1.0], 256), "theta"),
        (Coefficients([1.0] * 5, 0), "knee"),
        (Coefficients([1.0] * 5, 256, [math.nan]), "correction"),
    ],
    ids=["four", "negative", "infinite", "no time", "no knee", "not a number"],
)
def test_coefficients_that_predict_nothing_are_refused(
    coefficients: Coefficients, field: str
) -> None:
    """Whole: the limits of the same change are not applied either."""
    control = a_control()

    state = change(control, token_budget=32, coefficients=coefficients)

    assert f"coefficients.{field}" in str(state.error)
    assert control.limits == Limits(8, 64)


def test_coefficients_go_to_the_pacer_once_under_each_epoch() -> None:
    """A renewal repeats its epoch and changes nothing; what cannot be used is said."""
    under_test = EngineUnderTest()
    engine, seed = under_test.engine, Coefficients([30.0, 1.0, 0.0, 0.0, 0.0], 256)
    pacer = make_pacer(a_model_info(), a_capacity())
    engine.pacer = pacer

    renewal = engine.set_limits(SetLimits(call=1, epoch=0, coefficients=seed))
    assert pacer.info().origin == "prior"
    taken = engine.set_limits(SetLimits(call=2, epoch=1, coefficients=seed))
    assert pacer.info().origin == "seed"
    engine.pacer = NoPacer()
    ignored = engine.set_limits(SetLimits(call=3, epoch=2, coefficients=seed, token_budget=32))

    assert (renewal.ignored, taken.ignored) == ([], [])
    assert ignored.ignored == ["coefficients"]
    assert ignored.effective.token_budget == 32


def test_two_shares_of_nothing_are_refused() -> None:
    """Nobody would be served."""
    state = change(a_control(), interactive_share=0.0, batch_share=0.0)

    assert "must not both be 0" in str(state.error)


def test_a_lost_lease_returns_to_the_certified_limits() -> None:
    """Not to the defaults: the last ones that were shown to hold the target."""
    control = a_control()
    change(control, token_budget=32, certified=True)
    change(control, token_budget=48, max_batch_size=4, lease_s=10.0, now=0.0)

    assert control.expire(now=9.9, next_step=200, decodes=0) is None
    state = control.expire(now=10.0, next_step=200, decodes=0)

    assert state is not None
    assert (state.call, state.lease_lost, state.since_step) == (0, True, 200)
    assert (control.limits.token_budget, control.limits.max_batch_size) == (32, 8)
    assert state.epoch == control.epoch == 2
    assert control.expire(now=99.0, next_step=300, decodes=0) is None


def test_a_lost_lease_without_certified_limits_keeps_what_holds() -> None:
    """There is nothing better to return to, but it is told."""
    control = a_control()
    change(control, token_budget=48, lease_s=10.0)

    state = control.expire(now=10.0, next_step=200, decodes=0)

    assert state is not None
    assert state.lease_lost
    assert control.limits.token_budget == 48


def test_a_partial_change_after_a_lost_lease_starts_from_the_certified_limits() -> None:
    """What was lost does not come back with the next unrelated change."""
    control = a_control()
    change(control, max_batch_size=2, certified=True)
    change(control, max_batch_size=6, lease_s=10.0)
    control.expire(now=10.0, next_step=200, decodes=0)

    state = change(control, token_budget=32, lease_s=10.0)

    assert not state.lease_lost
    assert (state.effective.max_batch_size, state.effective.token_budget) == (2, 32)


def test_a_budget_below_the_running_decodes_is_reported_as_clamped() -> None:
    """Rows that a lowered batch size drains still get their token."""
    under_test = EngineUnderTest()
    under_test.submit(*[a_submit(f"{number}", max_tokens=3) for number in range(6)])
    under_test.step()

    state = under_test.engine.set_limits(
        SetLimits(call=1, epoch=1, max_batch_size=2, token_budget=2)
    )
    under_test.run_to_end()
    drained = under_test.engine.limits_state()

    assert (state.effective.token_budget, state.clamped) == (6, ["token_budget"])
    assert (drained.effective.token_budget, drained.clamped) == (2, [])
