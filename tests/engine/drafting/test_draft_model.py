"""A second model drafts; it may be right, wrong or slow, and every answer stays the same."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.batch import Batch
from paceline_engine.errors import RequestError
from paceline_engine.pacing.pacer import NoPacer
from paceline_testing.engines import EngineUnderTest, a_capacity, a_model_info, a_submit, answer
from paceline_testing.fake_runner import DoneFlight, FakeRunner, right_at
from paceline_wire import Submit
from paceline_wire.limits import Limits

VOCAB = 1000


def drafted(
    right_of_eight: int,
    *submits: Submit,
    draft_tokens: int = 4,
    num_blocks: int = 64,
    prefix_caching: bool = True,
    pacer: NoPacer | None = None,
    draft_pacer: NoPacer | None = None,
) -> EngineUnderTest:
    """An engine whose draft model is right at so many of eight places.

    Its runner reads back every token that it should have computed, as the model's own does.
    """
    under_test = EngineUnderTest(
        a_capacity(num_blocks=num_blocks, max_batch_size=4),
        draft_tokens=draft_tokens,
        draft_choice=right_at(right_of_eight, VOCAB),
        prefix_caching=prefix_caching,
        pacer=pacer,
        draft_pacer=draft_pacer,
    )
    under_test.submit(*submits)
    return under_test


def computed(runner: FakeRunner | None) -> Counter[str]:
    """Tokens that a runner computes from now on, by request."""
    assert runner is not None
    counts: Counter[str] = Counter()

    def count(batch: Batch) -> None:
        for piece in batch.chunks:
            counts[piece.request.id] += piece.count

    runner.before_run = count
    return counts


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Up to five prompts; those of one beginning share its blocks."""
    beginnings = [[1] * 20, [2, 3] * 10]
    return [
        draw(st.sampled_from(beginnings))[: draw(st.integers(0, 20))]
        + [50 + number] * draw(st.integers(1, 12))
        for number in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(
    prompts=prompts(),
    right_of_eight=st.integers(0, 8),
    draft_tokens=st.integers(1, 9),
    num_blocks=st.integers(21, 60),
    prefix_caching=st.booleans(),
    losses=st.dictionaries(st.integers(1, 40), st.integers(0, 3), max_size=8),
    limits=st.dictionaries(
        st.integers(0, 40), st.tuples(st.integers(1, 4), st.integers(1, 30)), max_size=8
    ),
)
def test_whatever_it_drafts_the_tokens_are_the_same(  # noqa: PLR0917 - hypothesis passes them by name
    prompts: list[list[int]],
    right_of_eight: int,
    draft_tokens: int,
    num_blocks: int,
    prefix_caching: bool,
    losses: dict[int, int],
    limits: dict[int, tuple[int, int]],
) -> None:
    """Chunked and shared prompts, few blocks, lost blocks and new limits at any step included.

    The draft model's own cache holds what it should all the while, or its runner says so.
    """
    submits = [
        a_submit(str(number), prompt, max_tokens=30) for number, prompt in enumerate(prompts)
    ]
    under_test = drafted(
        right_of_eight,
        *submits,
        draft_tokens=draft_tokens,
        num_blocks=num_blocks,
        prefix_caching=prefix_caching,
    )
    engine, scheduler = under_test.engine, under_test.engine.scheduler

    for step in range(1000):
        if engine.is_idle:
            break
        if step in limits:
            engine.control.limits = Limits(*limits[step])
        running = list(scheduler.requests.running())
        if step in losses and len(running) > 1:
            scheduler.requests.preempt(running[losses[step] % len(running)])
        under_test.step()

    assert engine.is_idle
    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)
    assert scheduler.requests.blocks.pool.num_used == 0


def test_what_agrees_with_the_model_is_never_refused() -> None:
    """Each step gives the draft and one more, up to the end."""
    under_test = drafted(8, a_submit("a", max_tokens=41), a_submit("b", [9], max_tokens=41))

    under_test.run_to_end()

    load = under_test.engine.load()
    assert load.accepted_tokens == load.draft_tokens == 2 * 32
    assert load.drafts == 2 * 8
    assert load.accepted_by_position == [2 * 8] * 4
    assert under_test.engine.counters.steps == 1 + 8


def test_each_token_is_computed_once_where_drafts_are_accepted() -> None:
    """All of 43 tokens but the last one, and but the last of each draft, which comes next."""
    under_test = drafted(8, a_submit("a", max_tokens=41))
    counts = computed(under_test.draft_runner)

    under_test.run_to_end()

    assert counts["a"] == 3 + 41 - 2


def test_a_prompt_that_is_far_behind_is_caught_up_with_in_parts() -> None:
    """No decode waits for more than 256 tokens of other prompts, and nothing is drafted early."""
    under_test = EngineUnderTest(
        a_capacity(num_blocks=300, max_model_len=1000, max_token_budget=1000),
        limits=Limits(8, 1000),
        draft_tokens=4,
        draft_choice=right_at(8, VOCAB),
    )
    seen: list[int] = []
    assert under_test.draft_runner is not None
    under_test.draft_runner.before_run = lambda batch: seen.append(batch.num_tokens)
    under_test.submit(a_submit("a", [5] * 600, max_tokens=20))

    under_test.run_to_end()

    assert seen[:4] == [256, 256, 600 + 1 + 2 - 512, 1]
    assert under_test.tokens("a") == answer(
        a_submit("a", [5] * 600, max_tokens=20), under_test.info, 1000
    )


def test_a_prefix_that_it_has_computed_is_found_again() -> None:
    """A system prompt is taken in once, by either model."""
    under_test = drafted(8, a_submit("a", [7] * 40, max_tokens=9))
    under_test.run_to_end()
    counts = computed(under_test.draft_runner)

    under_test.submit(a_submit("b", [7] * 40 + [8], max_tokens=9))
    under_test.run_to_end()

    assert counts["b"] < 40 / 2


def test_blocks_that_only_the_model_has_filled_are_computed_again() -> None:
    """The model's prefix is of no use to the draft model while that was not asked."""
    under_test = drafted(8, a_submit("a", [7] * 40, max_tokens=1))
    under_test.run_to_end()
    counts = computed(under_test.draft_runner)

    under_test.submit(a_submit("b", [7] * 40 + [8], max_tokens=9))
    under_test.run_to_end()

    assert under_test.engine.load().prefix_hits == 40
    assert counts["b"] >= 41


def test_who_has_left_is_forgotten() -> None:
    """An id may come again, with other tokens."""
    under_test = drafted(8, a_submit("a", [7] * 9, max_tokens=50))
    under_test.run_until(lambda: under_test.engine.load().accepted_tokens > 0)

    under_test.engine.abort(["a"])
    under_test.submit(a_submit("a", [8] * 5, max_tokens=20))
    under_test.outputs.clear()
    under_test.run_to_end()

    tokens = [t for o in under_test.outputs["a"] if o.finish != "abort" for t in o.token_ids]
    assert tokens == answer(a_submit("a", [8] * 5, max_tokens=20), under_test.info, 128)


def test_a_draft_model_that_breaks_on_a_request_leaves_it_alone() -> None:
    """No number out of it is no reason to fail the request, nor to draft no more for others."""
    under_test = drafted(8, a_submit("a", max_tokens=30), a_submit("b", [9], max_tokens=30))
    draft_runner = under_test.draft_runner
    assert draft_runner is not None
    launch = draft_runner.launch

    def broken(batch: Batch) -> DoneFlight:
        for piece in batch.chunks:
            if piece.request.id == "a":
                raise RequestError("a", "the model's output is not a number")
        return launch(batch)

    draft_runner.launch = broken  # type: ignore[method-assign] # as a model that is broken for one
    under_test.run_to_end()

    for submit in (a_submit("a", max_tokens=30), a_submit("b", [9], max_tokens=30)):
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)
    assert under_test.engine.load().accepted_tokens > 15


@pytest.mark.parametrize("eos", [3, 11])
def test_an_end_within_a_draft_is_the_end(eos: int) -> None:
    """What was drafted behind it is void."""
    info = a_model_info(vocab_size=20, eos_token_ids=(eos,))
    under_test = EngineUnderTest(info=info, draft_tokens=8, draft_choice=right_at(8, 20))
    submits = [a_submit(str(number), [number], max_tokens=60) for number in range(8)]
    under_test.submit(*submits)

    under_test.run_to_end()

    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, info, 128)
