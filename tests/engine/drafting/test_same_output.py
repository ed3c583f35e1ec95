"""With drafts an engine gives the very tokens that it gives without."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from paceline_engine.core.batch import Batch
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Quantization, Settings
from paceline_testing.clock import ManualClock
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_testing.fake_runner import FakeRunner
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Output, Sampling, Submit
from paceline_wire.limits import Limits


class Reciting:
    """Follows its own sequence where that repeats, with a slip now and then."""

    def __init__(self, runner: FakeRunner) -> None:
        self.vocab_size = runner.vocab_size

    def __call__(self, known: list[int]) -> int:
        """The token of six places before, mostly."""
        slips = len(known) % 7 == 0
        return (known[-6 % len(known)] + slips) % self.vocab_size


def recited(draft_tokens: int, *submits: Submit, num_blocks: int = 64) -> EngineUnderTest:
    """Run to the end with a model that repeats itself."""
    under_test = EngineUnderTest(
        a_capacity(num_blocks=num_blocks, max_batch_size=4), draft_tokens=draft_tokens
    )
    under_test.runner.choose = Reciting(under_test.runner)  # type: ignore[method-assign]
    under_test.submit(*submits)
    under_test.run_to_end()
    return under_test


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 24), st.integers(1, 40), st.integers(0, 4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 8),
    st.integers(17, 40),
)
def test_whatever_is_drafted_the_tokens_are_the_same(
    drawn: list[tuple[int, int, int]], draft_tokens: int, num_blocks: int
) -> None:
    """Ends, stop tokens, full blocks and pre-emptions included; and no block is lost."""
    submits = [
        a_submit(
            str(index),
            [(place * 3 + index) % 5 for place in range(length)],
            max_tokens=max_tokens,
            stop_token_ids=(stop,) if stop else (),
        )
        for index, (length, max_tokens, stop) in enumerate(drawn)
    ]

    plain = recited(0, *submits, num_blocks=num_blocks)
    drafted = recited(draft_tokens, *submits, num_blocks=num_blocks)

    for submit in submits:
        assert drafted.tokens(submit.id) == plain.tokens(submit.id)
        assert drafted.finish(submit.id) == plain.finish(submit.id)
    assert drafted.engine.requests.blocks.pool.num_used == 0
    assert drafted.engine.counters.output_tokens == plain.engine.counters.output_tokens


def test_accepted_drafts_save_steps() -> None:
    """Several tokens of one step come as one output, and are counted."""
    submit = a_submit("a", [1, 2, 3, 4, 5, 6] * 2, max_tokens=60)

    plain, drafted = recited(0, submit), recited(4, submit)

    load = drafted.engine.load()
    steps = drafted.engine.counters.steps
    assert steps < 0.6 * plain.engine.counters.steps
    assert 0 < load.accepted_tokens < load.draft_tokens
    assert steps + load.accepted_tokens == 60
    by_position = load.accepted_by_position
    assert sum(by_position) == load.accepted_tokens
    assert by_position == sorted(by_position, reverse=True)
    assert by_position[0] <= load.drafts <= load.draft_tokens


def repeated(known: list[int]) -> int:
    return known[-6 % len(known)]


def drafting(
    token_budget: int = 32, draft_choice: Callable[[list[int]], int] | None = None
) -> EngineUnderTest:
    """Bring an engine of so many tokens a step to where request `a` gets drafts."""
    under_test = EngineUnderTest(
        limits=Limits(4, token_budget), draft_tokens=4, draft_choice=draft_choice
    )
    under_test.runner.choose = repeated  # type: ignore[method-assign]
    seen: list[Batch] = []
    under_test.runner.before_run = seen.append
    under_test.submit(a_submit("a", [1, 2, 3, 4, 5, 6] * 2, max_tokens=60))
    under_test.run_until(lambda: any(batch.num_drafted for batch in seen))
    return under_test


def counts_of_a_step(under_test: EngineUnderTest) -> dict[str, int]:
    seen: list[Batch] = []
    under_test.runner.before_run = seen.append
    under_test.step()
    return {chunk.request.id: chunk.count for chunk in seen[0].chunks}


@pytest.mark.parametrize("prompt", [5, 50])
def test_drafts_go_on_beside_prompts(prompt: int) -> None:
    """A stream of prompts must not switch drafting off; together they keep to the step."""
    under_test = drafting()

    under_test.submit(a_submit("b", list(range(100, 100 + prompt))))

    assert counts_of_a_step(under_test) == {"a": 5, "b": min(prompt, 32 - 5)}


def test_prompts_keep_half_of_a_step() -> None:
    """Five tokens, one of them the decode's: two are drafts, two are the prompt's."""
    under_test = drafting(token_budget=5)

    under_test.submit(a_submit("b", list(range(100, 150))))

    assert counts_of_a_step(under_test) == {"a": 3, "b": 2}


def test_a_draft_model_waits_until_no_prompt_does() -> None:
    """Its passes would delay the first token of the prompt."""
    under_test = drafting(draft_choice=repeated)

    under_test.submit(a_submit("b", list(range(100, 150))))

    assert counts_of_a_step(under_test) == {"a": 1, "b": 31}


def make_weakly_attending(folder: Path, *, seed: int) -> None:
    """A tiny Llama in which mostly the newest token decides, so it soon repeats."""
    tiny = make_tiny_model(folder, "llama", seed=seed)
    with torch.no_grad():
        for name, parameter in tiny.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.mul_(0.02)
    tiny.save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two such models by their seeds."""
    made = {seed: tmp_path_factory.mktemp(f"tiny-{seed}") for seed in (3, 4)}
    for seed, folder in made.items():
        make_weakly_attending(folder, seed=seed)
    return made


def load(folder: Path, draft: Path | None = None) -> LoadedModel:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        max_model_len=256,
        max_batch_size=8,
        max_token_budget=256,
        kv_cache_bytes=4 << 20,
        speculative="none" if draft is None else "draft",
        draft_model_uri=None if draft is None else f"file://{draft}",
    )
    return load_model(settings, lambda _stage, _fraction: None)


def answers(
    model: LoadedModel, submits: Sequence[Submit], draft_tokens: int
) -> tuple[dict[str, list[int]], Engine]:
    clock = ManualClock()
    proposer = None
    if model.draft is not None:
        proposer = DraftModel(model.draft.runner, NoPacer(), model.capacity, clock)
        proposer.warm_up()
    engine = Engine(
        model.runner,
        model.info,
        model.capacity,
        NoPacer(),
        limits=Limits(8, 256),
        clock=clock,
        options=EngineOptions(draft_tokens=draft_tokens, proposer=proposer),
    )
    for submit in submits:
        engine.submit(submit)
    given: list[Output] = []
    while not engine.is_idle:
        given += engine.step()
    tokens = {
        submit.id: [t for o in given if o.id == submit.id for t in o.token_ids]
        for submit in submits
    }
    return tokens, engine


def greedy_and_drawn() -> list[Submit]:
    prompts = [[5, 6, 7, 8] * 6, [9, 10, 11] * 9, list(range(20, 50))]
    ways = [
        Sampling(max_tokens=60, temperature=0.0, ignore_eos=True),
        Sampling(max_tokens=60, temperature=0.3, seed=7, ignore_eos=True),
        Sampling(max_tokens=60, temperature=1.0, top_k=3, seed=8, ignore_eos=True),
        Sampling(max_tokens=60, temperature=1.0, min_p=0.2, seed=9, ignore_eos=True),
        Sampling(max_tokens=40, temperature=0.0, ignore_eos=True, frequency_penalty=0.5),
    ]
    return [
        Submit(str(index), prompt, way)
        for index, (prompt, way) in enumerate(itertools.product(prompts, ways))
    ]


@pytest.mark.parametrize("draft_seed", [None, 4], ids=["lookup", "another model"])
def test_a_real_model_answers_the_same_greedy_and_drawn(
    folders: dict[int, Path], draft_seed: int | None
) -> None:
    """Each place is drawn with the request's own number for it, drafted or not."""
    plain, _ = answers(load(folders[3]), greedy_and_drawn(), 0)
    model = load(folders[3], None if draft_seed is None else folders[draft_seed])
    drafted, engine = answers(model, greedy_and_drawn(), 6)

    assert drafted == plain
    told = engine.load()
    assert 0 < told.accepted_tokens < told.draft_tokens


def test_a_model_that_drafts_for_itself_is_always_right(folders: dict[int, Path]) -> None:
    """Also where tokens are drawn: it draws them with the same numbers."""
    plain, _ = answers(load(folders[3]), greedy_and_drawn(), 0)
    drafted, engine = answers(load(folders[3], folders[3]), greedy_and_drawn(), 6)

    assert drafted == plain
    told = engine.load()
    assert told.accepted_tokens == told.draft_tokens > 200


PROMPTS = ("The capital of France is", "def add(a, b):")


@pytest.mark.model
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_embedded_model_drafts_for_itself(quantization: Quantization | None) -> None:
    """Nothing but the number of steps tells, whatever is lost of the draft model's weights."""
    model = load_model(
        Settings(
            device="cpu",
            dtype="float32",
            threads=1,
            kv_cache_bytes=1 << 26,
            speculative="draft",
            draft_model_uri="builtin://smollm2-135m-instruct",
            draft_quantization=quantization,
        ),
        lambda _stage, _fraction: None,
    )
    tokenizer = Tokenizer.from_str(model.tokenizer.tokenizer_json)
    ways = [
        Sampling(max_tokens=9, temperature=0.0, ignore_eos=True),
        Sampling(max_tokens=9, temperature=0.8, top_p=0.95, seed=5, ignore_eos=True),
    ]
    submits = [
        Submit(f"{text} {way.temperature}", tokenizer.encode(text).ids, way)
        for text, way in itertools.product(PROMPTS, ways)
    ]

    plain, slow = answers(model, submits, 0)
    drafted, fast = answers(model, submits, 5)

    assert drafted == plain
    told = fast.load()
    assert told.accepted_tokens > 0.9 * told.draft_tokens > 0
    assert fast.counters.steps < slow.counters.steps / 2
