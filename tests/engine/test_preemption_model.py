"""Greedy answers of a real model, however often and in whatever way requests lose their blocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.kv_cache.host_blocks import HostBlocks
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Sampling, StepFeatures, Submit
from paceline_wire.limits import Limits

LENGTHS = (5, 17, 32, 40)
NEW_TOKENS = 20


class AnyPrice(NoPacer):
    """Computing again costs a millisecond a token: copies are always cheaper."""

    def predict_ms(self, step: StepFeatures) -> float:
        return 1.0 + 1e6 * step.tokens


@pytest.fixture(
    scope="module",
    params=[("auto", 12), ("fp8", 12), ("fp8", 16)],
    ids=["float32", "fp8", "fp8 compiled"],
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """What is stored of a token depends on nothing but the token: codes of FP8 neither."""
    kv_cache_dtype, head_size = request.param
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=head_size)
    chosen = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        max_batch_size=4,
        max_token_budget=64,
        kv_cache_bytes=1 << 20,
        block_size=8,
        swap_bytes=1 << 19,
        kv_cache_dtype=kv_cache_dtype,
    )
    return load_model(chosen, lambda _stage, _fraction: None)


def serve(
    loaded: LoadedModel, preemptions: dict[int, list[int]], *, swaps: bool
) -> tuple[list[list[int]], int]:
    """Answer every prompt; before step n the running requests at these places lose their blocks.

    The answers, and how often blocks were copied away.
    """
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        AnyPrice() if swaps else NoPacer(),
        limits=Limits(4, 64),
        clock=ManualClock(),
        options=EngineOptions(prefix_caching=False, swapper=loaded.swapper),
    )
    for number, length in enumerate(LENGTHS):
        prompt = [(7 * number + 11 * position) % 290 + 3 for position in range(length)]
        sampling = Sampling(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
        engine.submit(Submit(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {}
    step = 0
    while not engine.is_idle:
        scheduler = engine.scheduler
        for place in preemptions.get(step, ()):
            running = list(scheduler.requests.running())
            if len(running) > 1:
                scheduler.requests.preempt(running[place % len(running)])
        for output in engine.step():
            answers.setdefault(output.id, []).extend(output.token_ids)
        step += 1
        assert step < 2000
    times = sum(map(len, preemptions.values()))
    assert engine.load().swapped <= engine.load().preemptions <= times
    return [answers[str(number)] for number in range(len(LENGTHS))], engine.load().swapped


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    preemptions=st.dictionaries(
        st.integers(1, 30), st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=15
    ),
    swaps=st.booleans(),
)
def test_greedy_answers_do_not_depend_on_preemptions(
    loaded: LoadedModel, preemptions: dict[int, list[int]], swaps: bool
) -> None:
    """Copied away and back or computed anew, at any step, any number of times."""
    answers, swapped = serve(loaded, preemptions, swaps=swaps)

    assert answers == serve(loaded, {}, swaps=False)[0]
    assert swaps or swapped == 0


def test_blocks_really_go_to_host_memory(loaded: LoadedModel) -> None:
    """The price of a copy has been measured, and is what the choice goes by."""
    assert isinstance(loaded.swapper, HostBlocks)
    assert loaded.swapper.num_slots > 0
    before = loaded.swapper.ms(1)

    _, swapped = serve(loaded, {3: [0], 6: [1]}, swaps=True)

    assert swapped == 2
    assert before > 0
    assert loaded.swapper.ms(1) > 0
    first, later = (loaded.swapper.ms(n + 3) - loaded.swapper.ms(n) for n in (1, 7))
    assert first == pytest.approx(later)
    assert first > 0
