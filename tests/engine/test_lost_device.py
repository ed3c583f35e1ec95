"""What a GPU says after an illegal access is not true: the step loop ends and tells no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.runner.staging import StepStaging
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=32, num_blocks=20, max_model_len=64)
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
GOOD_STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


def an_engine(folder: Path, *, overlap: bool) -> Engine:
    runner: ModelRunner = kernel_runner(folder, CAPACITY, graphs=True)
    engine = Engine(
        runner,
        a_model_info(vocab_size=300),
        CAPACITY,
        NoPacer(),
        limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
        clock=ManualClock(),
        options=EngineOptions(overlap=overlap),
    )
    for number in range(2):
        sampling = Sampling(20, temperature=0.0, ignore_eos=True)
        engine.submit(Submit(str(number), [5, 6, 7 + number], sampling))
    return engine


def lost(*_args: object, **_kwargs: object) -> Any:
    raise LOST


def lose_staging(patch: pytest.MonkeyPatch) -> None:
    """The copy of a step's numbers is the first call after the kernels of the step before."""
    patch.setattr(StepStaging, "put", lost)


def lose_model(patch: pytest.MonkeyPatch) -> None:
    """A launch tells of what an earlier kernel did."""
    patch.setattr(ModelRunner, "compute", lost)


def lose_fetch(patch: pytest.MonkeyPatch) -> None:
    """Waiting for the tokens tells of it; on a GPU the step behind is launched by then."""
    patch.setattr("paceline_engine.sampling.sampler.SampledTokens.on_host", lost)


def step_twice(engine: Engine) -> None:
    for _ in range(2):
        engine.step()


@pytest.mark.parametrize("overlap", [False, True], ids=["alone", "overlapping"])
@pytest.mark.parametrize("lose", [lose_staging, lose_model, lose_fetch])
def test_an_error_of_the_device_is_nobodys_request(
    lose: Callable[[pytest.MonkeyPatch], None],
    overlap: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No request is blamed and run again without: whatever asks the device next must fail too."""
    engine = an_engine(folder, overlap=overlap)
    for _ in range(GOOD_STEPS):
        engine.step()

    lose(monkeypatch)

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        step_twice(engine)  # a step that was launched before is the next to be waited for


def test_tokens_that_were_on_their_way_are_not_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step behind could not be launched: what the one before sampled may be wrong already."""
    engine = an_engine(folder, overlap=True)
    for _ in range(GOOD_STEPS):
        engine.step()
    told: list[object] = []
    monkeypatch.setattr(engine.scheduler, "settle", lambda *args: told.append(args))

    lose_model(monkeypatch)

    with pytest.raises(torch.AcceleratorError):
        engine.step()
    assert not told
