"""A step of decodes beside a chunk of a prompt: op by op, and replayed from a graph."""

import time
from collections.abc import Iterator
from statistics import median

from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Figure
from paceline_engine.core.graph_sizes import mixed_sizes, padded_size
from paceline_engine.loading.load import LoadedModel
from paceline_engine.profiling.mixed_choice import measure
from paceline_engine.profiling.mixed_probe import MixedProbe
from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_engine.profiling.step_timer import StepTimer
from paceline_engine.runner.graph_capture import CudaGraphCapture, GraphCapture

STEP = ProbeStep(32, 1024, 256, prompt_tokens=256, prefill_context=256)
_DRY_STEP = ProbeStep(2, 20, 6, prompt_tokens=6, prefill_context=6)
EAGER, IN_GRAPH = "op by op", "in a graph"


def mixed_times(
    machine: Machine, loaded: LoadedModel, model: str, *, capture: GraphCapture | None = None
) -> Iterator[Figure | Absent]:
    """Time both ways, in turn, one step behind the other; a CPU has one of them.

    Afterwards no mixed graph is used.
    """
    runner, capacity = loaded.runner, loaded.capacity
    timer = StepTimer(runner, capacity, time.perf_counter, overlap=True)
    probe = MixedProbe(timer, capacity)
    step = _DRY_STEP if machine.is_dry else STEP
    if machine.is_dry and capture is None:
        yield _figure(model, EAGER, probe.seconds_at(step), "")
        yield Absent(names.mixed(model, IN_GRAPH), "no graph is captured on a CPU")
        return
    kept = ", ".join(map(str, runner.mixed_sizes)) or "none"
    size = padded_size(mixed_sizes(capacity.max_token_budget), step.features.tokens)
    graphs = runner.capture_mixed(
        capture or CudaGraphCapture(runner.device), [size], lambda _fraction: None
    )
    times = measure(graphs, lambda _: probe.seconds_at(step), clock=time.perf_counter)[size]
    runner.keep_mixed([])
    yield _figure(model, EAGER, times.eager, "")
    note = f"{step.features.tokens} tokens padded to {size}; chosen at start: {kept}"
    yield _figure(model, IN_GRAPH, times.replayed, note)


def _figure(model: str, way: str, seconds: tuple[float, ...], note: str) -> Figure:
    said = f"median of {len(seconds)}" + (f"; {note}" if note else "")
    return Figure(names.mixed(model, way), 1e3 * median(seconds), "ms", said)
