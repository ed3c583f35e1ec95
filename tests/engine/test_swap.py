"""Preempted requests: copied to host memory and back, or computed again, whichever is cheaper."""

from paceline_engine.pacing.pacer import NoPacer
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit, answer
from paceline_testing.fake_runner import FakeSwapper
from paceline_wire import StepFeatures, Submit
from paceline_wire.limits import Limits


class MillisecondPerToken(NoPacer):
    """A step takes a millisecond, and one more for each token."""

    def predict_ms(self, step: StepFeatures) -> float:
        return 1.0 + step.tokens


def an_engine(
    *, block_ms: float, fixed_ms: float = 0.0, num_slots: int = 16, has_model: bool = True
) -> EngineUnderTest:
    """Two rows, and a slot for every block."""
    return EngineUnderTest(
        a_capacity(num_blocks=16, block_size=4, max_batch_size=2),
        limits=Limits(2, 64),
        pacer=MillisecondPerToken() if has_model else None,
        prefix_caching=False,
        swapper=lambda runner: FakeSwapper(runner, num_slots, block_ms, fixed_ms),
    )


def a_batch(prompt_tokens: int = 20) -> Submit:
    return a_submit("batch", list(range(prompt_tokens)), max_tokens=8, lane="batch")


def displace(under_test: EngineUnderTest) -> list[int]:
    """Let two interactive requests take the rows; how many tokens each later step prefills."""
    under_test.submit(a_batch())
    under_test.step()
    under_test.step()
    interactive = [a_submit(f"{n}", [100 + n] * 3, max_tokens=3) for n in range(2)]
    under_test.submit(*interactive)
    prefilled: list[int] = []
    under_test.runner.before_run = lambda batch: prefilled.append(
        sum(chunk.count for chunk in batch.chunks[batch.num_decodes :])
    )
    under_test.run_to_end()
    return prefilled


class AskedForPrompts(NoPacer):
    """Counts how often a prompt alone is priced."""

    def __init__(self) -> None:
        self.times = 0

    def predict_ms(self, step: StepFeatures) -> float:
        self.times += step.decode == 0 and step.prefill > 0 and step.context == 0
        return 1.0


def test_without_host_memory_nobody_asks_what_computing_again_costs() -> None:
    """There is nothing to compare it with, and a preemption holds every decode up."""
    pacer = AskedForPrompts()
    under_test = EngineUnderTest(
        a_capacity(num_blocks=16, block_size=4, max_batch_size=2),
        limits=Limits(2, 64),
        pacer=pacer,
        prefix_caching=False,
    )
    under_test.submit(a_batch())
    under_test.step()
    under_test.step()
    asked_for_steps = pacer.times
    under_test.engine.requests.preempt(next(iter(under_test.engine.requests.running())))

    assert pacer.times == asked_for_steps
    assert under_test.engine.load().preemptions == 1


def test_blocks_are_copied_where_that_is_cheaper() -> None:
    """22 tokens in six blocks, out and back at 1 ms each, are cheaper than 22 ms of prefill."""
    under_test = an_engine(block_ms=1.0)

    prefilled = displace(under_test)

    load = under_test.engine.load()
    assert (load.displaced, load.swapped) == (1, 1)
    assert sum(prefilled) == 3 + 3 + 1
    assert under_test.tokens("batch") == answer(a_batch(), under_test.info, 128)


def test_tokens_are_computed_again_where_that_is_cheaper() -> None:
    """At 2 ms a block the copies would take 24 ms."""
    under_test = an_engine(block_ms=2.0)

    prefilled = displace(under_test)

    assert under_test.engine.load().swapped == 0
    assert sum(prefilled) > 20
    assert under_test.tokens("batch") == answer(a_batch(), under_test.info, 128)


def test_what_a_copy_takes_whatever_its_blocks_is_part_of_the_price() -> None:
    """At 12 ms each way, out and back, six blocks that cost nothing more are no gain."""
    under_test = an_engine(block_ms=0.0, fixed_ms=12.0)

    prefilled = displace(under_test)

    assert under_test.engine.load().swapped == 0
    assert sum(prefilled) > 20


def test_without_room_or_a_step_model_tokens_are_computed_again() -> None:
    """No slots are no reason to fail, and an unknown price no reason to copy."""
    for under_test in (
        an_engine(block_ms=0.0, num_slots=5),
        an_engine(block_ms=0.0, has_model=False),
    ):
        displace(under_test)

        assert under_test.engine.load().swapped == 0
        assert under_test.tokens("batch") == answer(a_batch(), under_test.info, 128)


def test_a_request_that_leaves_while_its_blocks_are_away_gives_them_up() -> None:
    """Slots are counted too."""
    under_test = an_engine(block_ms=0.0)
    under_test.submit(a_batch())
    under_test.step()
    under_test.submit(*[a_submit(f"{n}", [100 + n] * 3, max_tokens=3) for n in range(2)])
    under_test.step()
    space = under_test.engine.requests.blocks.swap
    assert space.num_free < space.num_slots

    under_test.engine.abort(["batch"])

    assert space.num_free == space.num_slots


def test_steps_that_copy_teach_the_step_model_nothing() -> None:
    """Their time is not that of their tokens."""
    under_test = an_engine(block_ms=1.0)
    for number in range(4):
        under_test.submit(a_submit(f"warm {number}", max_tokens=1))
        under_test.step()
    under_test.engine.log.take()

    displace(under_test)

    assert [step.clean for step in under_test.engine.log.take()].count(False) == 2
