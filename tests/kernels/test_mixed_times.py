"""The GPU suite's figures of a step with prompts, on a CPU: every path, and no figure counts."""

from pathlib import Path

import pytest

from gpu_suite import names
from gpu_suite.engine_times import dependent_step
from gpu_suite.machine import Machine
from gpu_suite.mixed_step import STEP, mixed_times
from gpu_suite.record import Absent, Figure
from paceline_engine.loading.load import LoadedModel
from paceline_kernels.dependent import dependent
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tiny_model import make_tiny_model

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=24, num_blocks=60, max_model_len=64)
DRY = Machine(is_dry=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    runner.capture_decodes(RecomputeCapture(), (4,), lambda _fraction: None)
    return LoadedModel(runner, a_model_info(vocab_size=300), CAPACITY)


def test_both_ways_are_measured_and_what_was_chosen_is_told(loaded: LoadedModel) -> None:
    """On the first GPU both figures stand one below the other."""
    loaded.runner.capture_mixed(RecomputeCapture(), (8, 16), lambda _fraction: None)

    eager, replayed = mixed_times(DRY, loaded, "m", capture=RecomputeCapture())

    assert isinstance(eager, Figure)
    assert isinstance(replayed, Figure)
    assert (eager.name, replayed.name) == (
        names.mixed("m", "op by op"),
        names.mixed("m", "in a graph"),
    )
    assert replayed.note.endswith("8 tokens padded to 8; chosen at start: 8, 16")
    assert eager.value > 0
    assert replayed.value > 0
    assert loaded.runner.mixed_sizes == ()
    assert loaded.runner.graph_use.mixed > 0


def test_a_dry_run_has_one_of_them(loaded: LoadedModel) -> None:
    """And says why the other is not there."""
    eager, replayed = mixed_times(DRY, loaded, "m")

    assert isinstance(eager, Figure)
    assert replayed == Absent(names.mixed("m", "in a graph"), "no graph is captured on a CPU")


def test_the_step_of_decodes_is_timed_with_dependent_launches(loaded: LoadedModel) -> None:
    """Beside the one without; a dry run captures nothing. The switch is as it was."""
    timed = dependent_step(DRY, loaded, "m", capture=RecomputeCapture())
    name = names.dependent_step("m")

    assert isinstance(timed, Figure)
    assert timed.name == name
    assert timed.value > 0
    assert not dependent.is_on
    assert dependent_step(DRY, loaded, "m") == Absent(name, "no graph is captured on a CPU")


def test_the_step_is_the_one_that_the_name_speaks_of() -> None:
    """A figure under a wrong name is worse than none."""
    name = names.mixed("m", "op by op")

    assert (STEP.decode, STEP.context_each, STEP.chunks) == (32, 1024, (256,))
    assert "32 decodes at context 1k beside a chunk of 256" in name
