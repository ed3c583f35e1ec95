"""What is recorded of a model before the first request, and the memory that is set aside for it."""

import time
from collections.abc import Callable, Sequence

import torch

from paceline_engine.core.graph_sizes import decode_sizes, piece_sizes
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.loading import memory
from paceline_engine.profiling.piecewise_choice import choose
from paceline_engine.profiling.piecewise_probe import PieceProbe
from paceline_engine.profiling.step_timer import StepTimer
from paceline_engine.runner.cuda_graphs import GraphCapture
from paceline_engine.runner.launcher import ModelLauncher
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Settings
from paceline_wire.limits import Capacity

Progress = Callable[[str, float], None]
"""Told the stage and its fraction, 0 to 1."""


def is_recorded(settings: Settings, device: torch.device) -> bool:
    """Tell whether steps are recorded: beside a GPU, unless ranks share the layers."""
    is_wanted = settings.graphs != "off" and settings.tensor_parallel_size == 1
    return is_wanted and device.type == "cuda"


def recorded_bytes(
    settings: Settings,
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    beside: Sequence[ModelConfig] = (),
) -> int:
    """What recordings take beside weights and cache: an estimate.

    Of models `beside` the first decodes alone are recorded.
    """
    rows, block_size = settings.max_batch_size, settings.block_size
    most_tokens = piece_sizes(settings.max_token_budget)[-1]
    of_decodes = sum(
        memory.graph_bytes(each, rows, block_size, dtype) for each in (config, *beside)
    )
    return of_decodes + memory.piece_bytes(config, most_tokens, dtype)


def record(
    settings: Settings,
    runner: ModelRunner,
    capacity: Capacity,
    progress: Progress,
    *,
    draft: ModelRunner | None = None,
    make_recorder: Callable[[], GraphCapture] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Record decodes, then of other steps what lies between attentions, where that is faster.

    A draft model guesses by decodes, one behind the other: of it these alone are recorded.
    """
    make_recorder = make_recorder or _of_cuda(runner.device)

    def decodes(fraction: float) -> None:
        progress("recording graphs", fraction)

    def pieces(fraction: float) -> None:
        progress("recording pieces", fraction)

    def guesses(fraction: float) -> None:
        progress("recording the draft model", fraction)

    runner.record(make_recorder(), decode_sizes(capacity.max_batch_size), decodes)
    decodes(1.0)
    if draft is not None:
        draft.record(make_recorder(), decode_sizes(capacity.max_batch_size), guesses)
        guesses(1.0)
    # With a recorder of their own, and its memory: where none is kept, that is free again.
    sizes = piece_sizes(capacity.max_token_budget)
    recorded = runner.record_pieces(make_recorder(), sizes, pieces)
    launcher = ModelLauncher(runner, capacity.max_batch_size)
    overlap = settings.overlap != "off" and settings.can_overlap
    probe = PieceProbe(StepTimer(launcher, capacity, clock, overlap=overlap), capacity)
    runner.keep_pieces(choose(recorded, probe.seconds_of, clock=clock))
    pieces(1.0)


def _of_cuda(device: torch.device) -> Callable[[], GraphCapture]:
    # Not imported at the top: of a GPU alone.
    from paceline_engine.runner.graph_capture import CudaGraphCapture  # noqa: PLC0415 - as above

    return lambda: CudaGraphCapture(device)
