"""A GPU that runs out of memory at start is told with the settings to lower, whoever noticed it."""

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from paceline_engine.core.batch import Batch, Flight
from paceline_engine.errors import DoesNotFit
from paceline_engine.loading.load import load_model
from paceline_engine.loading.out_of_memory import is_out_of_memory
from paceline_engine.pacing import make_pacer
from paceline_engine.process.process import Progress, ServableModel, TakeTokenizer, serve
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_testing.fake_cuda import FakeCuda
from paceline_testing.fake_gpu_model import load_on_fake_gpu
from paceline_testing.tiny_model import make_tiny_model


def _raised(error: Exception, behind: Exception) -> Exception:
    try:
        try:
            raise behind
        finally:
            raise error  # as a capture's end does
    except Exception as seen:  # noqa: BLE001 - the one that was made
        return seen


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        _raised(RuntimeError("capture invalidated"), torch.OutOfMemoryError("no memory")),
    ],
    ids=["torch", "triton", "cublas", "behind the end of a capture"],
)
def test_every_way_to_run_out_of_memory_is_recognised(error: Exception) -> None:
    """Only torch's allocator has a class of its own for it."""
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("illegal memory access"), ValueError("out of memory")]
)
def test_other_errors_are_no_lack_of_memory(error: Exception) -> None:
    """They go on as they are."""
    assert not is_out_of_memory(error)


def test_memory_that_ends_in_a_capture_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator's error is hidden by the end of the capture, which fails for it."""
    make_tiny_model(tmp_path, "llama", head_dim=16)

    def exhaust(_capture: CudaGraphCapture, _compute: Callable[[], None]) -> None:
        raise _raised(RuntimeError("capture invalidated"), torch.OutOfMemoryError("no memory"))

    monkeypatch.setattr(CudaGraphCapture, "capture", exhaust)
    with pytest.raises(DoesNotFit, match=r"MAX_TOKEN_BUDGET \(64\) .*MAX_BATCH_SIZE \(8\)"):
        load_on_fake_gpu(tmp_path, graphs="on")


@pytest.fixture
def own_sigterm() -> Iterator[None]:
    """Leave the handler as it was: an engine's process sets its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("own_sigterm")
@pytest.mark.parametrize("whose", ["model", "draft model"])
def test_memory_that_ends_in_the_timed_steps_after_loading_is_explained(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have shapes that no step before them had, and libraries take memory for those."""
    folder, run_dir = tmp_path / "model", tmp_path / "run"
    make_tiny_model(folder, "llama", head_dim=16)
    settings = Settings(
        model_uri=f"file://{folder}",
        speculative="draft",
        draft_model_uri=f"file://{folder}",
        device="cuda",
        dtype="bfloat16",
        threads=1,
        max_batch_size=8,
        max_token_budget=64,
        kv_cache_bytes=1 << 22,
        prefill_attention="triton",
        graphs="off",
        profile_s=60.0 if whose == "model" else 0.0,
        run_dir=run_dir,
        termination_log=tmp_path / "termination-log",
    )

    def exhaust(_runner: ModelRunner, _batch: Batch) -> Flight:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def load(
        settings: Settings, progress: Progress, take_tokenizer: TakeTokenizer
    ) -> ServableModel:
        loaded = load_model(settings, progress, take_tokenizer)
        monkeypatch.setattr(ModelRunner, "launch", exhaust)
        return loaded

    fake = FakeCuda()
    with fake.visible(), fake.loading():
        exit_code = serve(settings, load, make_pacer)

    assert exit_code == 1
    told = json.loads(settings.termination_log.read_text())
    assert told["reason"] == "DoesNotFit"
    assert "while steps were timed after loading" in told["message"]
    for lowered in ("KV_CACHE_MEMORY_FRACTION (0.9)", "TOKEN_BUDGET (64)", "BATCH_SIZE (8)"):
        assert lowered in told["message"]


def test_an_engine_without_torch_stays_without_it() -> None:
    """The process answers its socket before torch, which takes seconds, is imported."""
    shows = "import sys, paceline_engine.process.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", shows], check=False).returncode == 0


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_while_a_graph_is_captured(was_on: bool) -> None:
    """A collection may free what the driver must not be asked to free then."""
    seen: list[bool] = []
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with FakeCuda().visible():
            capture = CudaGraphCapture(torch.device("cuda"))
            capture.capture(lambda: seen.append(gc.isenabled()))
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()

    assert seen == [was_on, False]  # before the capture, and in it
    assert after == was_on


def test_a_capture_that_fails_gives_the_collector_back() -> None:
    """The engine may go on without graphs of this kind."""
    calls = iter([None, RuntimeError("no")])

    def compute() -> None:
        if error := next(calls):
            raise error

    with FakeCuda().visible(), pytest.raises(RuntimeError, match="no"):
        CudaGraphCapture(torch.device("cuda")).capture(compute)

    assert gc.isenabled()
