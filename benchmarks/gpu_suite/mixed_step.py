"""A step of decodes beside a chunk of a prompt: op by op, and in recorded pieces."""

import time
from collections.abc import Iterator
from statistics import median

from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Figure
from paceline_engine.core.graph_sizes import padded_size, piece_sizes
from paceline_engine.loading.load import LoadedModel
from paceline_engine.profiling.piecewise_choice import measure
from paceline_engine.profiling.piecewise_probe import PieceProbe
from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_engine.profiling.step_timer import StepTimer
from paceline_engine.runner.cuda_graphs import GraphCapture
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.runner.launcher import ModelLauncher

STEP = ProbeStep(32, 1024, 256, prompt_tokens=256, prefill_context=256)
_DRY_STEP = ProbeStep(2, 20, 6, prompt_tokens=6, prefill_context=6)
_EAGER, IN_PIECES = "op by op", "in pieces"


def mixed_times(
    machine: Machine, loaded: LoadedModel, model: str, *, recorder: GraphCapture | None = None
) -> Iterator[Figure | Absent]:
    """Time both ways, in turn, one step behind the other; a CPU has one of them.

    Afterwards nothing is computed in pieces.
    """
    runner, capacity = loaded.runner, loaded.capacity
    launcher = ModelLauncher(runner, capacity.max_batch_size)
    timer = StepTimer(launcher, capacity, time.perf_counter, overlap=True)
    probe = PieceProbe(timer, capacity)
    step = _DRY_STEP if machine.is_dry else STEP
    if machine.is_dry and recorder is None:
        yield _figure(model, _EAGER, probe.seconds_at(step), "")
        yield Absent(names.mixed(model, IN_PIECES), "nothing is recorded on a CPU")
        return
    kept = ", ".join(map(str, runner.sizes_in_pieces)) or "none"
    size = padded_size(piece_sizes(capacity.max_token_budget), step.features.tokens)
    pieces = runner.record_pieces(
        recorder or CudaGraphCapture(runner.device), [size], lambda _fraction: None
    )
    times = measure(pieces, lambda _: probe.seconds_at(step), clock=time.perf_counter)[size]
    runner.keep_pieces([])
    yield _figure(model, _EAGER, times.eager, "")
    note = f"{step.features.tokens} tokens padded to {size}; chosen at start: {kept}"
    yield _figure(model, IN_PIECES, times.in_pieces, note)


def _figure(model: str, way: str, seconds: tuple[float, ...], note: str) -> Figure:
    said = f"median of {len(seconds)}" + (f"; {note}" if note else "")
    return Figure(names.mixed(model, way), 1e3 * median(seconds), "ms", said)
