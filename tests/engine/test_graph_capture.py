"""Which graphs are captured at start, which are kept, and what memory is set aside for them."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.loading.capture import capture_graphs, graphs_bytes, uses_graphs
from paceline_engine.loading.memory import _parts_bytes, mixed_bytes
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_testing.engines import a_capacity
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tiny_model import make_tiny_model

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=24, num_blocks=60, max_model_len=64)
SETTINGS = Settings(model_uri="file:///model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


class Ticking:
    """A clock by which every step takes 2 ms, and with a graph of 8 tokens 1 ms."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._now = 0.0

    def __call__(self) -> float:
        graphs = self._runner._mixed
        is_fast = graphs is not None and 8 in graphs.enabled
        self._now += 0.001 if is_fast else 0.002
        return self._now


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_graphs_are_kept_where_steps_were_faster(folder: Path, overlap: str) -> None:
    """Measured by real steps of 8, 16 and 24 tokens, before the first request."""
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    settings = SETTINGS.model_copy(update={"overlap": overlap})
    told: list[tuple[str, float]] = []

    capture_graphs(
        settings,
        runner,
        CAPACITY,
        lambda stage, done: told.append((stage, done)),
        new_capture=RecomputeCapture,
        clock=Ticking(runner),
    )

    assert runner._decode_graphs is not None
    assert runner._mixed is not None
    assert runner.mixed_sizes == (8,)
    assert list(dict.fromkeys(stage for stage, _ in told)) == [
        "capturing graphs",
        "capturing mixed graphs",
    ]
    assert [done for stage, done in told if stage == "capturing mixed graphs"] == [
        0,
        1 / 3,
        2 / 3,
        1,
    ]


def test_where_nothing_is_faster_all_mixed_graphs_are_given_up(folder: Path) -> None:
    """Those of decodes stay."""
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    ticks = iter(range(10_000))

    capture_graphs(
        SETTINGS,
        runner,
        CAPACITY,
        lambda _stage, _done: None,
        new_capture=RecomputeCapture,
        clock=lambda: next(ticks) / 1e4,
    )

    assert runner._decode_graphs is not None
    assert runner._mixed is None


class PeakMemory(TorchDispatchMode):
    """Adds up what ops allocate and give back, in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        there = {self._key(each) for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        for each in tree_leaves(given):
            if torch.is_tensor(each) and (key := self._key(each)) not in there:
                self._live[key] = each.untyped_storage().nbytes()
                weakref.finalize(each.untyped_storage(), self._live.pop, key, None)
        self.peak = max(self.peak, sum(self._live.values()))
        return given

    def _key(self, tensor: torch.Tensor) -> int:
        key: int = tensor.untyped_storage()._cdata
        return key


def test_what_mixed_graphs_take_is_set_aside(folder: Path) -> None:
    """Their tensors and the widest moment of the largest, to a factor of 2.

    What attention's parts take is not seen here: the reference has none.
    """
    config = replace(open_checkpoint(folder).config, max_len=CAPACITY.max_model_len)
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    runner.capture_decodes(RecomputeCapture(), (4,), lambda _fraction: None)
    with PeakMemory() as memory, torch.inference_mode():
        runner.capture_mixed(RecomputeCapture(), (24,), lambda _fraction: None)

    estimated = mixed_bytes(config, 4, 24, CAPACITY.block_size, torch.float32)

    without_parts = estimated - _parts_bytes(config)
    assert memory.peak / 2 < without_parts < 2 * memory.peak


def test_more_is_set_aside_for_larger_steps_up_to_the_largest_graph(folder: Path) -> None:
    """Steps of more than 1,024 tokens have no graph."""
    config = open_checkpoint(folder).config

    few, many, more = (
        graphs_bytes(
            SETTINGS.model_copy(update={"max_token_budget": budget}), config, torch.float32
        )
        for budget in (512, 1024, 8192)
    )

    assert few < many == more


@pytest.mark.parametrize(
    ("device", "setting", "ranks", "is_wanted"),
    [
        ("cuda", "auto", 1, True),
        ("cuda", "on", 1, True),
        ("cuda", "off", 1, False),
        ("cuda", "auto", 2, True),
        ("cpu", "on", 1, False),
    ],
)
def test_ranks_on_gpus_capture(device: str, setting: str, ranks: int, is_wanted: bool) -> None:
    """A CPU has nothing to capture with."""
    changed = {"graphs": setting, "tensor_parallel_size": ranks}
    settings = SETTINGS.model_copy(update=changed)

    assert uses_graphs(settings, torch.device(device)) == is_wanted
