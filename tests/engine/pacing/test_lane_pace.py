"""What a step may take, by the lanes that decode in it."""

from paceline_engine.pacing.lane_pace import limits_for_lanes
from paceline_engine.pacing.pacer import NoPacer, StepShape
from paceline_testing.engines import EngineUnderTest, a_submit
from paceline_wire import SetLimits
from paceline_wire.limits import Limits

PLAIN = Limits(8, 64, step_target_ms=40.0)


def test_without_a_target_of_its_own_the_batch_lane_wants_what_all_want() -> None:
    """Nothing is changed, whoever runs."""
    assert limits_for_lanes(PLAIN, has_interactive=True, has_batch=True) is PLAIN
    assert limits_for_lanes(PLAIN, has_interactive=False, has_batch=True) is PLAIN


def test_a_step_keeps_the_least_of_what_the_lanes_in_it_want() -> None:
    """Whichever of the two is stricter."""
    loose = Limits(8, 64, step_target_ms=40.0, batch_step_target_ms=200.0)
    strict = Limits(8, 64, step_target_ms=40.0, batch_step_target_ms=20.0)

    assert limits_for_lanes(loose, has_interactive=True, has_batch=True).step_target_ms == 40.0
    assert limits_for_lanes(strict, has_interactive=True, has_batch=True).step_target_ms == 20.0
    assert limits_for_lanes(strict, has_interactive=True, has_batch=False).step_target_ms == 40.0


def test_batch_requests_alone_keep_their_own_target() -> None:
    """Nobody is there to be slowed down: steps may be long, and no interactive pace counts."""
    limits = Limits(8, 64, 40.0, pace_tpot_ms=50.0, batch_step_target_ms=200.0)

    alone = limits_for_lanes(limits, has_interactive=False, has_batch=True)

    assert (alone.step_target_ms, alone.pace_tpot_ms) == (200.0, None)


def test_a_pace_gives_way_to_a_batch_target_that_its_slack_could_break() -> None:
    """Slack lets a step take twice the pace: that must not be longer than the batch lane wants."""
    strict = Limits(8, 64, 40.0, pace_tpot_ms=50.0, batch_step_target_ms=60.0)
    loose = Limits(8, 64, 40.0, pace_tpot_ms=50.0, batch_step_target_ms=100.0)

    assert limits_for_lanes(strict, has_interactive=True, has_batch=True).pace_tpot_ms is None
    assert limits_for_lanes(loose, has_interactive=True, has_batch=True).pace_tpot_ms == 50.0


class _Listener(NoPacer):
    def __init__(self) -> None:
        self.asked: list[tuple[float | None, float | None]] = []

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        self.asked.append((limits.step_target_ms, shape.slack_ms))
        return limits.token_budget


def test_the_pacer_is_told_the_target_of_those_who_decode() -> None:
    """Batch alone, then beside an interactive request, then alone again."""
    pacer = _Listener()
    limits = Limits(8, 64, 40.0, batch_step_target_ms=200.0)
    under_test = EngineUnderTest(pacer=pacer, limits=limits)
    under_test.submit(a_submit("batch", max_tokens=20, lane="batch"))
    under_test.step()
    under_test.step()
    under_test.submit(a_submit("interactive", [7, 8, 9], max_tokens=3))
    for _ in range(4):
        under_test.step()

    assert [target for target, _ in pacer.asked[1:]] == [200.0, 200.0, 40.0, 40.0, 200.0]


def test_the_slack_is_the_interactive_lane_s_where_the_batch_lane_has_its_own_target() -> None:
    """A batch request that ran slowly on its own must not hurry the interactive lane's steps."""
    pacer = _Listener()
    limits = Limits(8, 64, 40.0, pace_tpot_ms=10.0, batch_step_target_ms=200.0)
    under_test = EngineUnderTest(pacer=pacer, limits=limits)
    under_test.submit(a_submit("batch", max_tokens=20, lane="batch"))
    for _ in range(3):
        under_test.step()
        under_test.clock.advance(0.15)
    under_test.submit(a_submit("interactive", [7, 8, 9], max_tokens=3))
    under_test.step()
    under_test.step()

    slack_ms = pacer.asked[-1][1]
    assert slack_ms is not None
    assert slack_ms > 0


def test_the_batch_target_is_a_limit_like_the_others() -> None:
    """Set, told, refused where it is none, and cleared."""
    engine = EngineUnderTest().engine

    state = engine.set_limits(SetLimits(call=1, epoch=1, batch_step_target_ms=200.0))
    wrong = engine.set_limits(SetLimits(call=2, epoch=2, batch_step_target_ms=-1.0))
    cleared = engine.set_limits(SetLimits(call=3, epoch=3, clear_batch_step_target=True))

    assert state.effective.batch_step_target_ms == 200.0
    assert wrong.error == "batch_step_target_ms must be a positive number, got -1.0"
    assert cleared.effective.batch_step_target_ms is None
