"""A draft model drafts by replayed decodes, and drafts the same."""

from pathlib import Path

import pytest
import torch

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.capture import capture_graphs, graphs_bytes
from paceline_engine.loading.memory import graph_bytes
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

CAPACITY = a_capacity(max_batch_size=3, max_token_budget=24, num_blocks=60, max_model_len=64)
SAMPLINGS = (
    Sampling(16, temperature=0.0, ignore_eos=True),
    Sampling(14, temperature=0.7, seed=3, ignore_eos=True),
    Sampling(11, temperature=0.9, ignore_eos=True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


def answers(model: ModelRunner, draft: ModelRunner) -> tuple[dict[str, list[int]], int, int]:
    """What three requests are answered, and how many tokens were drafted and accepted."""
    engine = Engine(
        model,
        a_model_info(vocab_size=300),
        CAPACITY,
        NoPacer(),
        limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
        clock=ManualClock(),
        options=EngineOptions(
            draft_tokens=3, proposer=DraftModel(draft, NoPacer(), CAPACITY, ManualClock())
        ),
    )
    tokens: dict[str, list[int]] = {}
    for number, sampling in enumerate(SAMPLINGS):
        prompt = [(5 + 7 * place + number) % 300 for place in range(6 + number)]
        engine.submit(Submit(str(number), prompt, sampling))
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None, output.error
            tokens.setdefault(output.id, []).extend(output.token_ids)
    load = engine.load()
    return tokens, load.draft_tokens, load.accepted_tokens


@pytest.mark.parametrize("is_itself", [True, False], ids=["the model itself", "another"])
def test_a_replayed_draft_model_drafts_what_it_drafts_op_by_op(
    folder: Path, tmp_path: Path, is_itself: bool
) -> None:
    """The model itself is right whenever it draws by the same number.

    Another goes on with what the model chose, and not with the draft token that lies at its row.
    """
    make_tiny_model(tmp_path, "llama", seed=1)
    model = kernel_runner(folder, CAPACITY, graphs=False)
    eager, replayed = (
        kernel_runner(folder if is_itself else tmp_path, CAPACITY, graphs=graphs, tokens_stay=False)
        for graphs in (False, True)
    )
    wanted = answers(model, eager)

    assert answers(model, replayed) == wanted
    _, drafted, accepted = wanted
    assert (drafted == accepted) == is_itself
    assert drafted > 0
    assert replayed.graph_use.decodes > 0


def test_decodes_of_a_draft_model_are_captured_beside_the_models(folder: Path) -> None:
    """And nothing between its attentions: it drafts one token after the other."""
    model, draft = (kernel_runner(folder, CAPACITY, graphs=False) for _ in range(2))
    ticks = iter(range(10_000))
    stages: list[str] = []

    capture_graphs(
        Settings(),
        model,
        CAPACITY,
        lambda stage, _done: stages.append(stage),
        draft=draft,
        new_capture=RecomputeCapture,
        clock=lambda: next(ticks) / 1e4,
    )

    assert model._decode_graphs is not None
    assert draft._decode_graphs is not None
    assert draft.mixed_sizes == ()
    assert "capturing the draft model" in stages


def test_memory_for_both_models_graphs_is_set_aside(folder: Path) -> None:
    """Each has logits, a table of blocks and partial sums of its own."""
    config, settings = open_checkpoint(folder).config, Settings()

    alone, both = (
        graphs_bytes(settings, config, torch.float32, beside=beside) for beside in ([], [config])
    )

    of_draft = graph_bytes(config, settings.max_batch_size, settings.block_size, torch.float32)
    assert both - alone == of_draft
