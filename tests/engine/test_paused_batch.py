"""Decodes of the batch lane leave steps to people's prompts, where those gain by it."""

from dataclasses import replace

import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.pacing.pacer import NoPacer, StepShape
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit, answer
from paceline_wire.limits import Limits

ALLOWED = 10
PAUSING = Limits(8, 64, 40.0, batch_step_target_ms=300.0, may_pause_batch=True)


class TenTokens(NoPacer):
    """Allows ten tokens a step, and keeps what decodes it was told of, and their target."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float | None]] = []

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        self.asked.append((shape.decode, limits.step_target_ms))
        return ALLOWED


class Steps:
    """An engine in which batch requests decode, and what each later step computes."""

    def __init__(
        self, limits: Limits = PAUSING, *, num_batch: int = 4, num_blocks: int = 64
    ) -> None:
        self.pacer = TenTokens()
        self.under_test = EngineUnderTest(
            a_capacity(num_blocks=num_blocks), limits=limits, pacer=self.pacer
        )
        self.batch = [
            a_submit(f"batch {n}", [n, n + 1], max_tokens=40, lane="batch")
            for n in range(num_batch)
        ]
        self.under_test.submit(*self.batch)
        self.under_test.run_until(
            lambda: len(self.under_test.engine.requests.decoding) == num_batch
        )
        self.counts: list[dict[str, int]] = []
        self.under_test.runner.before_run = self.note

    def note(self, batch: Batch) -> None:
        self.counts.append({chunk.request.id: chunk.count for chunk in batch.chunks})

    def ask(self, length: int) -> None:
        """Let a person come with a prompt of so many tokens."""
        self.under_test.submit(a_submit("person", list(range(100, 100 + length)), max_tokens=3))

    def take(self, count: int) -> list[dict[str, int]]:
        """Take so many steps; the tokens of each, by request."""
        del self.counts[:]
        for _ in range(count):
            self.under_test.step()
        return self.counts


BATCH = {f"batch {n}": 1 for n in range(4)}


def test_a_prompt_gets_the_tokens_of_batch_decodes_but_for_their_share_of_the_steps() -> None:
    """One token is kept for who pauses; with a fifth as its share the lane has each fifth step."""
    steps = Steps()

    steps.ask(56)

    assert steps.take(8) == [
        *[{"person": 9}] * 4,
        BATCH | {"person": 6},
        {"person": 9},
        BATCH | {"person": 5},
        BATCH | {"person": 1},
    ]


def test_the_load_counts_the_steps_that_batch_decodes_left_out() -> None:
    """Not those that they took, and none while no person's prompt needs their tokens."""
    steps = Steps()
    steps.take(3)
    assert steps.under_test.engine.load().batch_lane_paused_steps == 0

    steps.ask(56)
    taken = steps.take(8)

    left_out = sum("batch 0" not in counts for counts in taken)
    assert steps.under_test.engine.load().batch_lane_paused_steps == left_out == 5


def test_a_lane_with_half_of_the_share_has_every_other_step() -> None:
    steps = Steps(replace(PAUSING, interactive_share=0.5, batch_share=0.5))

    steps.ask(60)

    assert steps.take(4) == [{"person": 9}, BATCH | {"person": 6}] * 2


def test_a_lane_without_a_share_is_silenced_for_a_while_only() -> None:
    """As its prompts, it counts as if it had a hundredth."""
    steps = Steps(replace(PAUSING, interactive_share=1.0, batch_share=0.0))
    for number in range(30):
        steps.under_test.submit(a_submit(f"{number}", [number] * 60, max_tokens=1))

    taken = steps.take(150)

    assert [place for place, counts in enumerate(taken) if "batch 0" in counts] == [100]


def test_a_step_that_batch_decodes_leave_out_keeps_the_target_of_who_waits_for_it() -> None:
    """Theirs where nobody else decodes, else that of people."""
    steps = Steps()
    steps.ask(20)
    steps.take(1)
    alone = steps.pacer.asked[-2:]
    steps.under_test.run_until(lambda: len(steps.under_test.engine.requests.decoding) == 5)
    steps.under_test.submit(a_submit("other", list(range(50, 70)), max_tokens=2))
    steps.take(1)

    assert alone == [(4, 300.0), (1, 300.0)]
    assert steps.pacer.asked[-2:] == [(5, 40.0), (1, 40.0)]
    assert steps.counts == [{"person": 1, "other": 9}]


def test_prompts_of_the_batch_lane_pause_with_its_decodes() -> None:
    steps = Steps()
    steps.under_test.submit(a_submit("late", list(range(300, 340)), lane="batch"))

    steps.ask(20)

    assert steps.take(1) == [{"person": 9}]


def test_a_prompt_that_fits_beside_them_pauses_nobody() -> None:
    steps = Steps()

    steps.ask(6)

    assert steps.take(1) == [BATCH | {"person": 6}]


def test_nobody_pauses_where_prompts_would_gain_little() -> None:
    """With eight tokens of ten for the prompt already, one more is no quarter more."""
    steps = Steps(num_batch=2)

    steps.ask(20)

    assert steps.take(1) == [{"batch 0": 1, "batch 1": 1, "person": 8}]


def test_nobody_pauses_unless_the_limits_say_so() -> None:
    """Whatever target the batch lane's steps have."""
    steps = Steps(Limits(8, 64, 40.0, batch_step_target_ms=300.0))

    steps.ask(20)

    assert steps.take(1) == [BATCH | {"person": 6}]


def test_nobody_pauses_for_a_prompt_that_finds_no_room() -> None:
    """The step would be empty, and no block would ever become free."""
    steps = Steps(num_blocks=12)

    steps.ask(40)

    assert steps.take(1) == [BATCH]


@pytest.mark.parametrize("overlap", [False, True])
def test_who_paused_answers_as_if_nothing_had_been(*, overlap: bool) -> None:
    """Also where a step is chosen while the one before runs."""
    under_test = EngineUnderTest(limits=PAUSING, pacer=TenTokens(), overlap=overlap)
    pauses: list[bool] = []
    under_test.runner.before_run = lambda batch: pauses.append(batch.is_batch_paused)
    submits = [a_submit(f"b{n}", [n, 7], max_tokens=20, lane="batch") for n in range(3)]
    under_test.submit(*submits)
    for number in range(4):
        under_test.step()
        under_test.step()
        submits.append(a_submit(f"p{number}", [number] * 25, max_tokens=4))
        under_test.submit(submits[-1])
    under_test.run_to_end()

    assert any(pauses)
    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)


def test_a_pause_is_counted_in_the_slack() -> None:
    """Whoever paused is as late as its client sees it."""
    steps = Steps()
    steps.ask(20)
    steps.take(3)
    requests = steps.under_test.engine.requests
    now = steps.under_test.clock.now

    slack_ms = requests.pace.slack_ms(Limits(8, 64, pace_tpot_ms=50.0), now)

    expected = sorted(
        ((request.first_token_at or 0.0) - now) * 1e3 + 0.93 * 50.0 * request.num_output_tokens
        for request in requests.decoding.values()
    )
    assert slack_ms == pytest.approx(expected[0])
