"""The engine's real process around a device that takes time and nothing else.

`python -m paceline_testing.timed_engine` takes the settings of `python -m paceline_engine`. Several
of them on two cores are not in each other's way, as engines on GPUs are not. The number in the file
that `TIMED_ENGINE_SLOWDOWN` names, if it is there, multiplies the time of every step from then on.
Loading takes `TIMED_ENGINE_LOAD_S` seconds, 0 by default.
"""

import logging
import os
import sys
import time
from pathlib import Path
from string import ascii_lowercase
from typing import Final

import msgspec

from paceline_engine.core.batch import Batch
from paceline_engine.pacing import make_pacer
from paceline_engine.process.process import Progress, TakeTokenizer, serve
from paceline_engine.settings import Settings, read_settings
from paceline_sim.hardware import CPU_135M
from paceline_testing.byte_tokenizer import BYTES
from paceline_testing.fake_engine import FAKE_CAPACITY, FAKE_MODEL, FAKE_TOKENIZER, FakeModel
from paceline_testing.fake_runner import FakeRunner, LateRunner, next_token

_STEP_S: Final = 0.024
_TOKEN_S: Final = 0.0006
"""Weights are read once a step, and each token is computed, be it of a prompt or of an answer.
Eight rows and their prompts of 100 tokens serve eight requests of 16 tokens a second."""
_LETTERS: Final = [BYTES.index(letter) for letter in ascii_lowercase]
"""Tokens that are text as soon as they are there: a caller waits for nothing else."""

_ASSUMED = CPU_135M.model_info()
# The pacer's prior goes by the model's size.
_MODEL = msgspec.structs.replace(
    FAKE_MODEL, num_parameters=_ASSUMED.num_parameters, weight_bytes=_ASSUMED.weight_bytes
)


def load_timed_model(
    _settings: Settings, progress: Progress, take_tokenizer: TakeTokenizer
) -> FakeModel:
    """Load nothing, for as long as weights would take."""
    take_tokenizer(FAKE_TOKENIZER)
    progress("weights", 0.5)
    time.sleep(float(os.environ.get("TIMED_ENGINE_LOAD_S", "0")))
    slowdown = Path(os.environ.get("TIMED_ENGINE_SLOWDOWN", "/nonexistent"))
    runner = _Speaking(FAKE_CAPACITY)
    runner.before_run = lambda batch: time.sleep(_seconds(batch) * _factor(slowdown))
    return FakeModel(info=_MODEL, runner=LateRunner(runner, FAKE_CAPACITY.max_batch_size))


class _Speaking(FakeRunner):
    """Answers by letters."""

    def choose(self, known: list[int]) -> int:
        """The letter that follows."""
        return _LETTERS[next_token(known, len(_LETTERS))]


def _seconds(batch: Batch) -> float:
    return _STEP_S + _TOKEN_S * sum(chunk.count for chunk in batch.chunks)


def _factor(slowdown: Path) -> float:
    try:
        return float(slowdown.read_text())
    except (FileNotFoundError, ValueError):  # it may be half written
        return 1.0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(serve(read_settings(), load_timed_model, make_pacer))
