"""What one step costs on the host: scheduling, preparing, settling and recording, without a model.

With `--replayed` a step goes through the model's runner as one that is replayed from a CUDA graph,
up to its tokens on the host; no kernel runs, so what is left is what the host does for it.

`python benchmarks/host.py` prints a line per number of running sequences: the median and the 99th
percentile of a decode step's host time, with the fitted pacer asked in every step and the garbage
collector kept as the engine's process keeps it. Wall time is what a step waits; processor time is
what it would be on a machine that nobody shares.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast
from unittest import mock

import torch

from paceline_engine.attention.backend import AttentionBackend
from paceline_engine.core.batch import Batch, Flight, StepOutput
from paceline_engine.core.graph_sizes import decode_sizes
from paceline_engine.engine.engine import Engine
from paceline_engine.model.decoder import Decoder
from paceline_engine.pacing import make_pacer
from paceline_engine.process.collector import QuietCollector
from paceline_engine.runner import gpu_tables as device_tables
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_capture import Replay
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_wire import ModelInfo, Sampling, Submit
from paceline_wire.limits import Capacity, Limits

BLOCK_SIZE = 16
PROMPT_TOKENS = 256
WARM_UP_STEPS = 50
CPU = torch.device("cpu")
TEMPERATURES = {"greedy": 0.0, "drawn": 0.8}
TARGET_MS = {64: 0.3, 256: 1.0, 1024: 4.0}


@dataclass(frozen=True)
class HostTimes:
    """Times of the steps of one run, in milliseconds."""

    wall_ms: list[float]
    cpu_ms: list[float]
    gc_pause_ms: float
    """All collections together."""


@dataclass(frozen=True, slots=True)
class InstantFlight:
    """A step that has ended when it begins."""

    batch: Batch

    def result(self) -> StepOutput:
        """Give token 1 wherever a chunk samples."""
        return StepOutput([1 if chunk.samples else None for chunk in self.batch.chunks])


class InstantRunner:
    """Gives token 1 at once."""

    def launch(self, batch: Batch) -> Flight:
        """Compute nothing."""
        return InstantFlight(batch)


class StagingRunner(InstantRunner):
    """Prepares what a model's runner does, and stages it."""

    def __init__(self, capacity: Capacity, vocab_size: int) -> None:
        num_rows, block_size = capacity.max_batch_size, capacity.block_size
        num_columns = -(-capacity.max_model_len // block_size)
        self._input_batch = InputBatch(num_rows, num_columns, block_size, vocab_size, salt=b"salt")
        self._tables = DeviceTables(
            num_rows, num_columns, block_size, capacity.max_token_budget, CPU
        )

    def launch(self, batch: Batch) -> Flight:
        """Stage what the step needs."""
        self._tables.stage(self._input_batch.prepare(batch))
        return super().launch(batch)


class ReplayingRunner(InstantRunner):
    """A model's runner whose steps are replayed from graphs that hold nothing."""

    def __init__(self, capacity: Capacity, vocab_size: int) -> None:
        num_rows, block_size = capacity.max_batch_size, capacity.block_size
        num_columns = -(-capacity.max_model_len // block_size)
        self._tables = DeviceTables(num_rows, num_columns, block_size, num_rows, CPU)
        self._runner = ModelRunner(
            cast(
                "Decoder",
                _NoModel(
                    SimpleNamespace(vocab_size=vocab_size), torch.empty(0, dtype=torch.bfloat16)
                ),
            ),
            cast("AttentionBackend", None),
            DeviceSampler(()),
            InputBatch(num_rows, num_columns, block_size, vocab_size, salt=b"salt"),
            self._tables,
        )
        self._runner.capture_decodes(
            _NothingCaptured(), decode_sizes(num_rows), lambda _fraction: None
        )

    def launch(self, batch: Batch) -> Flight:
        """Replay a step of decodes; a step with prompts only leaves its rows in the input batch."""
        if batch.num_decodes == len(batch.chunks):
            return self._runner.launch(batch)
        self._runner.prepare(batch)
        return super().launch(batch)


@dataclass(frozen=True)
class _NoModel:
    config: SimpleNamespace
    embedding: torch.Tensor


class _NothingCaptured:
    def capture(self, compute: Callable[[], None]) -> Replay:
        del compute
        return lambda: None


def _launch_nothing(*_: torch.Tensor) -> None:
    """In place of a kernel."""


MakeRunner = Callable[[Capacity, int], InstantRunner]
"""Makes a runner from a capacity and a vocabulary's size."""


def an_info(max_model_len: int) -> ModelInfo:
    """Describe a model of a common size on a GPU."""
    return ModelInfo(
        name="none",
        family="llama",
        revision="",
        dtype="bfloat16",
        device="cuda",
        num_parameters=1_000_000_000,
        vocab_size=32_000,
        max_model_len=max_model_len,
        bos_token_id=None,
        eos_token_ids=[2],
        kv_bytes_per_token=32_768,
        weight_bytes=2_000_000_000,
    )


def decode_host_times(
    running: int, steps: int, make_runner: MakeRunner, sampling: Sampling
) -> HostTimes:
    """Measure the host time of `steps` decode steps with `running` sequences."""
    max_model_len = PROMPT_TOKENS + WARM_UP_STEPS + steps + BLOCK_SIZE
    capacity = Capacity(
        max_batch_size=running,
        max_token_budget=8192,
        num_blocks=running * -(-max_model_len // BLOCK_SIZE) + running,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
    )
    info = an_info(max_model_len)
    engine = Engine(
        make_runner(capacity, info.vocab_size),
        info,
        capacity,
        make_pacer(info, capacity),
        limits=Limits(running, 8192, step_target_ms=20.0, pace_tpot_ms=20.0),
        clock=time.perf_counter,
    )
    for number in range(running):
        prompt = [(number * 7 + position) % 32_000 for position in range(PROMPT_TOKENS)]
        engine.submit(Submit(str(number), prompt, sampling))
    while len(engine.requests.decoding) < running:
        if engine.is_idle:
            raise RuntimeError("requests ended before all decoded: the machine is too busy to pace")
        engine.step()
    for _ in range(WARM_UP_STEPS // 2):
        engine.step()
    engine.log.take()
    collector = QuietCollector()
    wall_ms, cpu_ms = [], []
    try:
        for _ in range(steps):
            if len(engine.requests.decoding) < running:
                break
            started, cpu_started = time.perf_counter(), time.thread_time()
            engine.step()
            cpu_ms.append((time.thread_time() - cpu_started) * 1e3)
            wall_ms.append((time.perf_counter() - started) * 1e3)
    finally:
        collector.close()
    return HostTimes(wall_ms, cpu_ms, collector.pause_ms)


def p50_p99(values: list[float]) -> str:
    """Format both in one column."""
    return f"{statistics.median(values):>7.3f} {statistics.quantiles(values, n=100)[98]:>8.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=400)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--no-inputs", action="store_true")
    kind.add_argument("--replayed", choices=TEMPERATURES, help="what the rows ask for")
    arguments = parser.parse_args()
    make_runner: MakeRunner = StagingRunner
    if arguments.no_inputs:
        make_runner = lambda _capacity, _vocab_size: InstantRunner()  # noqa: E731 - as the others
    if arguments.replayed:
        make_runner = ReplayingRunner
    max_tokens = WARM_UP_STEPS + arguments.steps
    temperature = TEMPERATURES.get(arguments.replayed, 1.0)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    print(
        f"{'running':>8} {'wall p50':>8} {'p99 ms':>8} {'cpu p50':>8} {'p99 ms':>8} target   gc ms"
    )
    for running in arguments.running:
        # In place of the kernel, whose reference would take the host's time.
        with mock.patch.object(device_tables, "write_rows", _launch_nothing):
            times = decode_host_times(running, arguments.steps, make_runner, sampling)
        print(
            f"{running:>8} {p50_p99(times.wall_ms):>17} {p50_p99(times.cpu_ms):>17} "
            f"{TARGET_MS.get(running, ''):>6} {times.gc_pause_ms:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
