"""The engine's real process around a model without weights, for tests of what surrounds it.

`python -m paceline_testing.fake_engine` takes the settings of `python -m paceline_engine`.
`FAKE_ENGINE_FAULT` makes it fail:
`load` (the model is not found), `step` (a defect in the first step), `wait` (loading never ends),
`hang` (the first step never ends, its thread sleeps), `spin` (it runs on and on instead), `lock`
(it holds Python's lock as well), `starve` (its core is taken for several times
`PACELINE_ENGINE_STEP_TIMEOUT_S`, then it ends), `slow` (each step takes a tenth of a second),
`memory` (on a GPU the third step could not be launched, for a
kernel before it read wild memory), `late` (as `memory`, told when the third step is waited for).
"""

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.core.batch import Batch
from paceline_engine.errors import ModelNotFound
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.process.process import Progress, TakeTokenizer, serve
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.settings import Settings, read_settings
from paceline_testing.byte_tokenizer import CHAT_TEMPLATE, EOS, byte_tokenizer
from paceline_testing.fake_runner import FakeRunner, LateRunner
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity

FAKE_MODEL = ModelInfo(
    name="fake",
    family="llama",
    revision="0",
    dtype="float32",
    device="cpu",
    num_parameters=1,
    vocab_size=1000,
    max_model_len=512,
    bos_token_id=None,
    eos_token_ids=[],
    kv_bytes_per_token=8,
    weight_bytes=4,
)
FAKE_CAPACITY = Capacity(
    max_batch_size=8, max_token_budget=256, num_blocks=256, block_size=8, max_model_len=512
)


FAKE_TOKENIZER: Final = TokenizerFiles(byte_tokenizer().to_str(), CHAT_TEMPLATE, None, EOS)
"""One that a sidecar reads; what the model answers are not its bytes."""


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What the loader gives."""

    info: ModelInfo = FAKE_MODEL
    capacity: Capacity = FAKE_CAPACITY
    runner: LateRunner = field(
        default_factory=lambda: LateRunner(FakeRunner(FAKE_CAPACITY), FAKE_CAPACITY.max_batch_size)
    )

    @property
    def adapters(self) -> None:
        return None

    @property
    def swapper(self) -> None:
        """No host memory."""

    @property
    def draft(self) -> None:
        """No second model."""

    @property
    def graph_use(self) -> GraphUse:
        """No graph is captured."""
        return GraphUse()


def load_fake_model(
    settings: Settings, progress: Progress, take_tokenizer: TakeTokenizer
) -> FakeModel:
    """Load nothing, or fail as `FAKE_ENGINE_FAULT` says."""
    take_tokenizer(FAKE_TOKENIZER)
    progress("weights", 0.5)
    fault = os.environ.get("FAKE_ENGINE_FAULT")
    if fault == "load":
        raise ModelNotFound(f"nothing lies at {settings.model_uri}")
    if fault == "wait":
        threading.Event().wait()
    model = FakeModel()
    if fault == "step":
        model.runner.inner.before_run = _break
    if fault in _BEFORE_RUN:
        model.runner.inner.before_run = _BEFORE_RUN[fault]
    if fault == "starve":
        model.runner.inner.before_run = _Starved(4 * settings.step_timeout_s)
    if fault == "memory":
        model.runner.inner.before_run = _IllegalAccess()
    if fault == "late":
        model.runner.inner.before_choice = _IllegalAccess()
    return model


def _break(_batch: Batch) -> None:
    raise ZeroDivisionError("a defect in a step")


def _hang(_batch: Batch) -> None:
    threading.Event().wait()


def _spin(_batch: Batch) -> None:
    while True:
        pass


def _hold_lock(_batch: Batch) -> None:
    # Called through PyDLL, C keeps the lock.
    ctypes.PyDLL(None).pause()


def _take_time(_batch: Batch) -> None:
    time.sleep(0.1)


_BEFORE_RUN: Final = {"hang": _hang, "spin": _spin, "lock": _hold_lock, "slow": _take_time}


class _Starved:
    """The first step computes for so long beside somebody who takes its core."""

    def __init__(self, wall_s: float) -> None:
        self._wall_s = wall_s
        self._core = min(os.sched_getaffinity(0))
        command = [sys.executable, "-c", _GREEDY, str(self._core), str(wall_s)]
        self._greedy = subprocess.Popen(command, stdin=subprocess.PIPE)

    def __call__(self, _batch: Batch) -> None:
        if self._greedy.stdin is None or self._greedy.stdin.closed:
            return
        os.sched_setaffinity(0, {self._core})  # of this thread alone
        os.nice(19)
        end = time.monotonic() + self._wall_s
        self._greedy.stdin.close()  # from now on
        while time.monotonic() < end:
            pass


_GREEDY: Final = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
sys.stdin.read()
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    pass
"""


@dataclass(slots=True)
class _IllegalAccess:
    """Raises what torch raises at the first call after a kernel read or wrote wild memory."""

    steps: int = 0

    def __call__(self, _of: object) -> None:
        import torch  # noqa: PLC0415 - no other fake needs it

        self.steps += 1
        if self.steps == 3:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(serve(read_settings(), load_fake_model, lambda _info, _capacity: NoPacer()))
