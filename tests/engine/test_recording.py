"""What is recorded at start, what of it is kept, and what is set aside for it."""

from pathlib import Path

import pytest
import torch

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.loading.memory import peak_step_bytes, piece_bytes
from paceline_engine.loading.recording import is_recorded, record, recorded_bytes
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_testing.again import Again
from paceline_testing.engines import a_capacity
from paceline_testing.graphed import kernel_runner
from paceline_testing.tiny_model import make_tiny_model

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=24, num_blocks=60, max_model_len=64)
SETTINGS = Settings(model_uri="file:///model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


class Ticking:
    """A clock by which every step takes 2 ms, and in pieces of up to 8 tokens 1 ms."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._now = 0.0

    def __call__(self) -> float:
        pieces = self._runner._pieces
        is_fast = pieces is not None and any(pieces.serves(count) for count in range(1, 9))
        self._now += 0.001 if is_fast else 0.002
        return self._now


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_pieces_are_kept_where_steps_were_faster(folder: Path, overlap: str) -> None:
    """Measured by real steps of 8, 16 and 24 tokens, before the first request."""
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    settings = SETTINGS.model_copy(update={"overlap": overlap})
    told: list[tuple[str, float]] = []

    record(
        settings,
        runner,
        CAPACITY,
        lambda stage, done: told.append((stage, done)),
        make_recorder=Again,
        clock=Ticking(runner),
    )

    assert runner._graphs is not None
    assert runner._pieces is not None
    assert [count for count in range(1, 25) if runner._pieces.serves(count)] == list(range(1, 9))
    assert list(dict.fromkeys(stage for stage, _ in told)) == [
        "recording graphs",
        "recording pieces",
    ]
    assert [done for stage, done in told if stage == "recording pieces"] == [0, 1 / 3, 2 / 3, 1]


def test_where_nothing_is_faster_all_pieces_are_given_up(folder: Path) -> None:
    """Decodes stay recorded."""
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    ticks = iter(range(10_000))

    record(
        SETTINGS,
        runner,
        CAPACITY,
        lambda _stage, _done: None,
        make_recorder=Again,
        clock=lambda: next(ticks) / 1e4,
    )

    assert runner._graphs is not None
    assert runner._pieces is None


def test_what_pieces_hold_is_set_aside(folder: Path) -> None:
    """Their tensors, and the widest moment of the largest; no more than a step can have."""
    config = open_checkpoint(folder).config
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    runner.record(Again(), (4,), lambda _fraction: None)
    pieces = runner.record_pieces(Again(), (8, 24), lambda _fraction: None)
    tensors = (pieces._token_ids, pieces._attended, pieces._qkv, pieces._residual)

    wanted = sum(tensor.nbytes for tensor in tensors) + peak_step_bytes(config, 24, torch.float32)

    assert piece_bytes(config, 24, torch.float32) == wanted
    few, many, more = (
        recorded_bytes(
            SETTINGS.model_copy(update={"max_token_budget": budget}), config, torch.float32
        )
        for budget in (512, 1024, 8192)
    )
    assert many - few == piece_bytes(config, 1024, torch.float32) - piece_bytes(
        config, 512, torch.float32
    )
    assert more == many


@pytest.mark.parametrize(
    ("device", "setting", "ranks", "is_wanted"),
    [
        ("cuda", "auto", 1, True),
        ("cuda", "on", 1, True),
        ("cuda", "off", 1, False),
        ("cuda", "auto", 2, False),
        ("cpu", "on", 1, False),
    ],
)
def test_one_rank_beside_a_gpu_records(
    device: str, setting: str, ranks: int, is_wanted: bool
) -> None:
    """A CPU has nothing to record with, and the steps of several ranks are told to each."""
    changed = {"graphs": setting, "tensor_parallel_size": ranks}
    settings = SETTINGS.model_copy(update=changed)

    assert is_recorded(settings, torch.device(device)) == is_wanted
