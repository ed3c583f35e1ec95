"""Static and dynamic batching: who is in a batch, how it is padded, when the next one begins."""

import msgspec
import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.scheduling import Gathering, Scheduling
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit, answer
from paceline_wire import Submit
from paceline_wire.limits import Limits


class Steps:
    """What each step computed: real tokens by request, and padding."""

    def __init__(self, under_test: EngineUnderTest) -> None:
        self.real: list[dict[str, int]] = []
        self.padding: list[int] = []
        under_test.runner.before_run = self.note

    def note(self, batch: Batch) -> None:
        self.real.append({p.request.id: p.count for p in batch.chunks if not p.is_padding})
        self.padding.append(batch.num_padding)


def a_prompt(
    id: str, length: int, *, max_tokens: int, first: int = 0, at: float = 1000.0
) -> Submit:
    prompt = [(first + n) % 1000 for n in range(length)]
    return msgspec.structs.replace(a_submit(id, prompt, max_tokens=max_tokens), arrived_at=at)


def an_engine(
    scheduling: Scheduling, limits: Limits | None = None, gathering: Gathering | None = None
) -> EngineUnderTest:
    return EngineUnderTest(
        a_capacity(num_blocks=128),
        limits=limits or Limits(4, 64),
        scheduling=scheduling,
        gathering=gathering,
    )


def test_a_static_batch_runs_until_all_of_it_has_ended() -> None:
    """Who comes meanwhile waits, though rows are free."""
    under_test = an_engine("static")
    under_test.submit(a_prompt("short", 3, max_tokens=1), a_prompt("long", 3, max_tokens=6))
    under_test.step()
    under_test.submit(a_prompt("late", 3, max_tokens=1))

    under_test.run_to_end()

    assert under_test.finished == ["short", "long", "late"]
    assert under_test.outputs["late"][0].scheduled_at is not None


def test_prompts_are_padded_to_the_longest_and_rows_to_the_end() -> None:
    """3 + 10 tokens cost 20; who has ended costs a token a step until the batch ends."""
    under_test = an_engine("static")
    steps = Steps(under_test)
    under_test.submit(a_prompt("a", 3, max_tokens=2), a_prompt("b", 10, max_tokens=5, first=50))

    under_test.run_to_end()

    assert steps.real == [{"a": 3, "b": 10}, {"a": 1, "b": 1}, {"b": 1}, {"b": 1}, {"b": 1}]
    assert steps.padding == [7, 0, 1, 1, 1]
    load = under_test.engine.load()
    assert (load.padding_tokens, load.prompt_tokens, load.output_tokens) == (10, 13, 7)


def test_nobody_decodes_before_every_prompt_of_the_batch_is_done() -> None:
    """As a padded engine computes: first the prompts, then a token each."""
    under_test = an_engine("static", Limits(4, 16))
    steps = Steps(under_test)
    under_test.submit(a_prompt("a", 12, max_tokens=3), a_prompt("b", 12, max_tokens=3, first=50))

    under_test.run_to_end()

    assert steps.real[:3] == [{"a": 12, "b": 4}, {"b": 8}, {"a": 1, "b": 1}]


@pytest.mark.parametrize("scheduling", ["static", "dynamic"])
def test_padding_changes_no_answer(scheduling: Scheduling) -> None:
    """It is computed, and nothing comes of it."""
    under_test = an_engine(scheduling)
    submits = [
        a_prompt(f"{n}", 2 + 5 * n, max_tokens=1 + 3 * n, first=90 * n, at=0.0) for n in range(7)
    ]

    under_test.submit(*submits)
    under_test.run_to_end()

    assert under_test.engine.load().padding_tokens > 0
    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)


def test_a_dynamic_batch_waits_for_others_but_not_for_ever() -> None:
    """Two of four have come: they start when the first has waited for a tenth of a second."""
    under_test = an_engine("dynamic")
    under_test.submit(a_prompt("a", 3, max_tokens=2), a_prompt("b", 3, max_tokens=2, first=50))

    under_test.step()
    assert under_test.engine.is_gathering
    assert not under_test.outputs
    under_test.clock.advance(Gathering().max_wait_s)
    under_test.step()

    assert set(under_test.outputs) == {"a", "b"}
    assert not under_test.engine.is_gathering


def test_a_batch_may_wait_for_exactly_n_and_mix_lengths() -> None:
    """The static batching of textbooks: nobody starts before the fourth has come."""
    under_test = an_engine("dynamic", gathering=Gathering(max_wait_s=1e9, has_buckets=False))
    under_test.submit(*[a_prompt(f"{n}", 2 + 9 * n, max_tokens=2, first=50 * n) for n in range(3)])

    under_test.step()
    under_test.clock.advance(3600.0)
    under_test.step()
    assert not under_test.outputs

    under_test.submit(a_prompt("last", 3, max_tokens=2, first=300))
    under_test.run_to_end()
    assert set(under_test.outputs) == {"0", "1", "2", "last"}


def test_a_full_dynamic_batch_starts_at_once() -> None:
    """Nobody else would fit."""
    under_test = an_engine("dynamic")
    under_test.submit(*[a_prompt(f"{n}", 3, max_tokens=2, first=50 * n) for n in range(4)])

    under_test.step()

    assert len(under_test.outputs) == 4


def test_a_dynamic_batch_takes_prompts_of_about_equal_length() -> None:
    """So that little is padded; the first that waits is always in, so that no length starves."""
    under_test = an_engine("dynamic")
    steps = Steps(under_test)
    lengths = {"first": 30, "tiny": 3, "alike": 20, "other": 4}
    under_test.submit(
        *[
            a_prompt(id, length, max_tokens=1, first=90 * n)
            for n, (id, length) in enumerate(lengths.items())
        ]
    )
    under_test.clock.advance(1.0)

    under_test.run_to_end()

    assert [set(real) for real in steps.real] == [{"first", "alike"}, {"tiny", "other"}]
    assert steps.padding == [10, 1]


def test_continuous_batching_pads_nothing() -> None:
    """A row is filled as soon as it is free."""
    under_test = an_engine("continuous")
    under_test.submit(a_prompt("a", 3, max_tokens=2), a_prompt("b", 10, max_tokens=5, first=50))

    under_test.run_to_end()

    assert under_test.engine.load().padding_tokens == 0
