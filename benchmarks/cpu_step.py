"""Where the time of a CPU's steps goes, beside what the machine can do: bandwidth and rate.

    PYTHONPATH=benchmarks python benchmarks/cpu_step.py [--precision bfloat16 int8 float32]

Three steps of the embedded model: one decode, 16 decodes, and a prefill of 2,048 tokens. Each part
is told in milliseconds (medians), with the bytes of weights or keys and values that it must read,
and its multiplications; and both as shares of the machine's own: a copy of memory that no cache
holds (bytes read and written), and torch's product of 2,048 x 2,048 matrices in the same precision.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.runner.layer_stack import LayerStack
from paceline_engine.settings import Settings
from paceline_kernels.cpu.layers import PARTS
from paceline_wire import Sampling

Precision = Literal["float32", "bfloat16", "int8"]
PRODUCTS = {"qkv": "qkv", "out": "out", "gate and up": "gate_up", "down": "down"}
"""Parts that are products, by the name of their weight in a layer."""
REPEATS = 15
CONTEXT = 300


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine does at its best, in this run."""

    copy_gb_s: float
    gflop_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, and what it asks of the machine outside its weights."""

    name: str
    batch: Batch
    tokens: int
    sampled: int
    keys: int
    """Keys that decodes attend to, all together."""
    pairs: int
    """Queries and keys of prompts that meet."""


def best(run: Callable[[], object], repeats: int = 21) -> float:
    """Return the shortest of some runs in seconds."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def measure_machine(dtype: torch.dtype) -> Machine:
    """Copy 512 MiB; multiply."""
    source = torch.ones(128 << 20)
    target = torch.empty_like(source)
    copied = best(lambda: target.copy_(source))
    left, right = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    multiplied = best(lambda: left @ right)
    return Machine(2 * source.nbytes / copied / 1e9, 2 * 2048**3 / multiplied / 1e9)


def _request(name: int, tokens: int, block_size: int) -> Request:
    blocks = -(-(tokens + 1) // block_size)
    held = list(range(name * blocks, (name + 1) * blocks))
    ids = [5 + (name + 7 * place) % 40_000 for place in range(tokens)]
    sampling = Sampling(max_tokens=2, temperature=0.0)
    return Request(str(name), ids, tokens, sampling, row=name, block_ids=held)


def decodes(rows: int, block_size: int) -> Step:
    """Let some rows decode behind so many tokens."""
    requests = [_request(name, CONTEXT, block_size) for name in range(rows)]
    chunks = [
        ScheduledChunk(request, CONTEXT - 1, 1, samples=True, is_decode=True)
        for request in requests
    ]
    name = "1 decode" if rows == 1 else f"{rows} decodes"
    return Step(name, Batch(tuple(chunks), num_decodes=rows), rows, rows, rows * CONTEXT, 0)


def prefill(prompts: int, tokens: int, block_size: int) -> Step:
    """Compute whole prompts."""
    requests = [_request(name, tokens, block_size) for name in range(prompts)]
    chunks = [
        ScheduledChunk(request, 0, tokens, samples=True, is_decode=False) for request in requests
    ]
    total = prompts * tokens
    pairs = prompts * tokens * (tokens + 1) // 2
    batch = Batch(tuple(chunks), num_decodes=0)
    return Step(f"prefill of {total:,}", batch, total, prompts, 0, pairs)


def stack_of(model: LoadedModel) -> LayerStack:
    """Return the layers as one call, whose parts can be timed."""
    if model.runner.layer_stack is None:
        raise SystemExit("The layers are not compiled here: there are no parts to tell apart.")
    return model.runner.layer_stack


def timed(model: LoadedModel, step: Step) -> tuple[float, list[float]]:
    """Return the medians in seconds: of the whole step, and of its parts [PARTS]."""
    compiled = stack_of(model).compiled
    totals, parts = [], []
    for _ in range(REPEATS):
        compiled.profile = torch.zeros(len(PARTS), dtype=torch.float64)
        began = time.perf_counter()
        model.runner.logits(step.batch)
        totals.append(time.perf_counter() - began)
        parts.append(compiled.profile)
    compiled.profile = None
    return statistics.median(totals), torch.stack(parts).median(dim=0).values.tolist()


@dataclass(frozen=True, slots=True)
class Work:
    """What a part of a step asks of the machine at least."""

    bytes: float = 0.0
    """Weights, keys and values that must be read."""
    flops: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Ask for both."""
        return Work(self.bytes + other.bytes, self.flops + other.flops)


def work_of(stack: LayerStack, step: Step, part: str) -> Work:
    """Count what one part of all layers asks for."""
    config = stack.decoder.config
    if part in PRODUCTS:
        weights = [getattr(layer, PRODUCTS[part]).weight for layer in stack.layers]
        read = sum(weight.nbytes for weight in weights)
        return Work(read, sum(2.0 * step.tokens * each.outputs * each.inputs for each in weights))
    keys = stack.layers[0].k_cache
    if part == "decode attention":
        heads = 2 * config.num_kv_heads * config.head_size
        return Work(bytes=float(step.keys * heads * keys.element_size() * config.num_layers))
    if part == "prompt attention":
        heads = config.num_q_heads * config.head_size
        return Work(flops=4.0 * step.pairs * heads * config.num_layers)
    return Work()


def head_of(stack: LayerStack, step: Step) -> Work:
    """Count what the head asks for, which only tokens that sample meet."""
    config = stack.decoder.config
    numbers = config.vocab_size * config.hidden_size
    return Work(
        numbers * float(stack.decoder.embedding.dtype.itemsize), 2.0 * step.sampled * numbers
    )


def rows(model: LoadedModel, step: Step, machine: Machine) -> list[str]:
    """Write a line for each part of a step."""
    stack = stack_of(model)
    total, seconds = timed(model, step)
    works = [work_of(stack, step, part) for part in PARTS]
    names = [*PARTS, "embedding, head and Python", "**all**"]
    seconds += [total - sum(seconds), total]
    works += [head_of(stack, step)]
    works += [sum(works, Work())]
    return [
        f"| {step.name} | {name} | {1e3 * took:.2f} | {100 * took / total:.0f} % "
        f"| {_share(work.bytes / took / 1e9, machine.copy_gb_s, 'GB/s')} "
        f"| {_share(work.flops / took / 1e9, machine.gflop_s, 'GFLOP/s')} |"
        for name, took, work in zip(names, seconds, works, strict=True)
        if took
    ]


def _share(figure: float, of: float, unit: str) -> str:
    return f"{figure:,.1f} {unit}, {100 * figure / of:.0f} %" if figure else ""


def load(precision: Precision) -> LoadedModel:
    """Load the embedded model; INT8 is of bfloat16."""
    settings = Settings(
        device="cpu",
        dtype="float32" if precision == "float32" else "bfloat16",
        quantization="int8" if precision == "int8" else "none",
        max_token_budget=2048,
    )
    return load_model(settings, lambda _stage, _fraction: None)


def report(precision: Precision) -> str:
    """Measure the machine and the three steps."""
    model = load(precision)
    machine = measure_machine(torch.float32 if precision == "float32" else torch.bfloat16)
    block_size = model.capacity.block_size
    steps = (decodes(1, block_size), decodes(16, block_size), prefill(4, 512, block_size))
    lines = [
        f"## {precision}\n",
        (
            f"{torch.get_num_threads()} threads; copy {machine.copy_gb_s:.1f} GB/s, product of "
            f"2,048 x 2,048 {machine.gflop_s:,.0f} GFLOP/s.\n"
        ),
        "| Step | Part | ms | of the step | read, share of the copy | rate, share of the product |",
        "|---|---|---|---|---|---|",
    ]
    for step in steps:
        lines += rows(model, step, machine)
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write them down where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--precision", nargs="+", choices=get_args(Precision), default=["bfloat16", "int8"]
    )
    parser.add_argument("--results", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    tables = []
    for precision in arguments.precision:
        tables.append(report(precision))
        print(tables[-1], end="\n\n", flush=True)
    if arguments.results is not None:
        head = "# Where the time of a CPU's steps goes\n\n"
        made = "\n\nMade by `python benchmarks/cpu_step.py`.\n"
        arguments.results.write_text(head + "\n\n".join(tables) + made)


if __name__ == "__main__":
    main()
