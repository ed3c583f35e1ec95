"""Our engine in this process, random weights in true shapes: steps, single stream, throughput."""

import random
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

import torch

from gpu_suite import names, shapes
from gpu_suite.gaps import Span, between_steps, gaps
from gpu_suite.machine import Machine
from gpu_suite.mixed_step import IN_GRAPH, mixed_times
from gpu_suite.parts import tried
from gpu_suite.record import Absent, Figure, Found
from gpu_suite.requests import Asked, answers, engine_of, prompt, submit, uniform
from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import LoadedModel
from paceline_engine.profiling.every_variant import launch_every_variant
from paceline_engine.runner.graph_capture import CudaGraphCapture, GraphCapture
from paceline_kernels.dependent import LEAST_CAPABILITY, dependent

_WARM_STEPS = 8


def measure(machine: Machine) -> Iterator[Found]:
    """One model after the other, the smallest first; each is freed before the next."""
    for model in names.MODELS:
        if model in machine.models and model not in machine.passed:
            yield from tried(model, partial(_model, machine, model), machine)
            machine.tidy()


def _model(machine: Machine, model: str) -> Iterator[Found]:
    """Load it once for all; what an earlier try has, or broke at, is left out."""
    takes = {names.step(model): _step, names.idle(model): _idle, names.single(model): _single}
    if model in names.THROUGHPUT_MODELS:
        takes[names.throughput(model)] = _throughput
    # The last two change what is recorded.
    takes[names.mixed(model, IN_GRAPH)] = _mixed
    takes[names.dependent_step(model)] = _dependent_step
    left = {name: take for name, take in takes.items() if name not in machine.passed}
    loaded = shapes.load(model, machine) if left else None
    for name, take in left.items():
        assert loaded is not None
        yield from tried(name, partial(take, machine, loaded, model), machine)


def _step(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    rows, context, steps = _load(machine)
    engine = decoding(loaded, rows, context, steps)
    yield _time_figure(names.step(model), timed(machine, engine, steps))


def _dependent_step(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    yield dependent_step(machine, loaded, model)


def dependent_step(
    machine: Machine, loaded: LoadedModel, model: str, *, capture: GraphCapture | None = None
) -> Figure | Absent:
    """Time the step of `names.step` with each kernel launched before the one before has ended.

    Afterwards decodes of other sizes are computed op by op.
    """
    name = names.dependent_step(model)
    if machine.is_dry and capture is None:
        return Absent(name, "no graph is captured on a CPU")
    rows, context, steps = _load(machine)
    runner = loaded.runner
    if capture is None and torch.cuda.get_device_capability(runner.device) < LEAST_CAPABILITY:
        return Absent(name, "the GPU knows no dependent launches")
    with dependent.turned(on=True):
        # Kernels are compiled, then captured, the other way.
        launch_every_variant(runner, loaded.capacity, clock=time.perf_counter)
        capture = capture or CudaGraphCapture(runner.device)
        runner.capture_decodes(capture, [rows], lambda _fraction: None)
        return _time_figure(name, timed(machine, decoding(loaded, rows, context, steps), steps))


def _idle(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    rows, context, steps = _load(machine)
    num_profiled = min(steps, 24)
    engine = decoding(loaded, rows, context, steps)
    spans = profiled(machine, engine, num_profiled)
    if not spans:  # nothing is known, which is not an idle time of 0
        yield Absent(names.idle(model), "torch's profiler saw nothing run on this machine's GPU")
        return
    yield Figure(
        names.idle(model),
        between_steps(spans, num_profiled),
        "us",
        f"at most, under the profiler; {sum(gaps(spans)) / num_profiled:.1f} us in all of a "
        "step's pauses",
    )


def _single(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    _, _, steps = _load(machine)
    engine = decoding(loaded, 1, 20 if machine.is_dry else 128, 2 * steps)
    yield _time_figure(names.single(model), timed(machine, engine, 2 * steps))


def _throughput(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    yield throughput(machine, loaded, model)


def _mixed(machine: Machine, loaded: LoadedModel, model: str) -> Iterator[Found]:
    return mixed_times(machine, loaded, model)


def _load(machine: Machine) -> tuple[int, int, int]:
    """Rows, their context, and steps."""
    return (3, 20, 4) if machine.is_dry else (64, 1024, 64)


def decoding(loaded: LoadedModel, rows: int, context: int, steps: int) -> Engine:
    """Give an engine in which so many requests have begun, and none ends for so many steps."""
    engine, source = engine_of(loaded), random.Random(1)
    num_output = min(4 * (steps + _WARM_STEPS) + rows, loaded.capacity.max_model_len - context)
    for number in range(rows):
        asked = Asked(prompt(source, context, loaded.info.vocab_size), num_output)
        submit(engine, number, asked, temperature=0.0)
    while len(engine.requests.decoding) < rows:
        engine.step()
    for _ in range(_WARM_STEPS):
        engine.step()
    return engine


def timed(machine: Machine, engine: Engine, steps: int) -> list[float]:
    """Milliseconds of each step: from one settled step to the next."""
    machine.wait()
    marks = [time.perf_counter()]
    for _ in range(steps):
        engine.step()
        marks.append(time.perf_counter())
    _end(engine)
    return [1e3 * (after - before) for before, after in pairwise(marks)]


def profiled(machine: Machine, engine: Engine, steps: int) -> list[Span]:
    """When the device was busy, in microseconds; in a dry run, when torch was."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU] if machine.is_dry else [activity.CUDA]
    machine.wait()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            engine.step()
        machine.wait()
    _end(engine)
    events: Any = profile.events()
    wanted = "CPU" if machine.is_dry else "CUDA"
    return [
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == wanted and not getattr(event, "is_user_annotation", False)
    ]


def _end(engine: Engine) -> None:
    engine.settle()
    engine.abort_all()
    while not engine.is_idle:
        engine.step()


def throughput(machine: Machine, loaded: LoadedModel, model: str) -> Figure:
    """Output tokens per second of the whole benchmark. Raises RuntimeError where any is missing."""
    asked = uniform(machine, loaded.info.vocab_size)
    warm = engine_of(loaded)  # what compiles does so here
    for number, one in enumerate(asked[:64]):
        submit(warm, number, Asked(one.prompt, min(one.num_output, 8)))
    answers(warm)
    engine = engine_of(loaded)
    machine.wait()
    started = time.perf_counter()
    for number, one in enumerate(asked):
        submit(engine, number, one)
    given = answers(engine)
    elapsed_s = time.perf_counter() - started
    num_tokens = sum(map(len, given.values()))
    if num_tokens != sum(one.num_output for one in asked):
        raise RuntimeError(f"{model} gave {num_tokens} tokens, not those that were asked for")
    note = f"{num_tokens:,} tokens in {elapsed_s:.1f} s"
    return Figure(names.throughput(model), num_tokens / elapsed_s, "tok/s", note)


def _time_figure(name: str, times_ms: list[float]) -> Figure:
    slow = quantiles(times_ms, n=10)[-1]
    return Figure(name, median(times_ms), "ms", f"median; 90 % within {slow:.2f} ms")
