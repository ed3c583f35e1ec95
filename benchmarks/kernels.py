"""Time of every kernel on this machine's GPU, beside the rates that its memory and cores reach.

    python benchmarks/kernels.py [--json PATH]
    python benchmarks/kernels.py --dry     # tiny shapes in Triton's interpreter, nothing is timed

A kernel is timed only after its result agreed with its reference in float64. Times are of a CUDA
graph's replays, as the engine decodes, so that they hold no launch overhead; the same tensors are
read again and again, and a case whose bytes fit the L2 cache says so.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch
import triton
from torch import Tensor

from paceline_kernels.activation import kernel as activation
from paceline_kernels.activation import reference_silu_mul
from paceline_kernels.decode_attention import kernel as decode_attention
from paceline_kernels.decode_attention import reference_paged_decode_attention
from paceline_kernels.norm import kernel as norm
from paceline_kernels.norm import reference_add_rms_norm
from paceline_kernels.prefill_attention import kernel as prefill_attention
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_kernels.rotary import kernel as rotary
from paceline_kernels.rotary import reference_rope_and_store_kv

ERROR_LIMITS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
BLOCK_SIZE = 16

Call = Callable[[], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a model's layer."""

    name: str
    hidden: int
    features: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A model's layer in a dtype on a device: makes the tensors that its kernels take."""

    model: Model
    dtype: torch.dtype
    device: str

    def randn(self, *sizes: int) -> Tensor:
        """Draw numbers as a layer's activations are: around 1."""
        return torch.randn(sizes, dtype=self.dtype, device=self.device)

    def queries(self, num_tokens: int) -> Tensor:
        """All query heads of some tokens."""
        return self.randn(num_tokens, self.model.num_q_heads, self.model.head_size)

    def caches(self, num_blocks: int) -> tuple[Tensor, Tensor]:
        """K and V, full of numbers."""
        sizes = (num_blocks, BLOCK_SIZE, self.model.num_kv_heads, self.model.head_size)
        return self.randn(*sizes), self.randn(*sizes)

    def tables(self, contexts: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """Block tables over shuffled blocks, the contexts' lengths, and the number of blocks."""
        counts = [-(-context // BLOCK_SIZE) for context in contexts]
        table = torch.zeros(len(contexts), max(counts), dtype=torch.int32)
        for row, blocks in enumerate(torch.split(torch.randperm(sum(counts)), counts)):
            table[row, : len(blocks)] = blocks
        lens = torch.tensor(contexts, dtype=torch.int32)
        return table.to(self.device), lens.to(self.device), sum(counts)


@dataclass(frozen=True, slots=True)
class Load:
    """What a step computes: tokens of the pointwise ops, contexts of decode, chunks of prefill."""

    num_tokens: int
    contexts: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[tuple[int, int], ...], ...]
    """Each (new tokens, context with them)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size, with what it must move and compute."""

    model: str
    kernel: str
    size: str
    run: Call
    reference: Call
    num_bytes: int
    num_flops: int = 0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the device reaches, measured in this run."""

    bytes_per_s: float
    flops_per_s: float
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report; a dry run has no times."""

    model: str
    kernel: str
    size: str
    relative_error: float
    time_us: float | None = None
    share_of_copy_bandwidth: float | None = None
    share_of_matmul_rate: float | None = None
    fits_l2: bool | None = None


MODELS = (
    Model("smollm2-135m", 576, 1536, 9, 3, 64),
    Model("llama-3.1-8b", 4096, 14336, 32, 8, 128),
)
LOAD = Load(
    num_tokens=256,
    contexts=(
        (32768,),
        (8192,) * 16,
        (1024,) * 64,
        (1024,) * 256,
        (32768, *(1024,) * 63),
    ),
    chunks=(((4096, 4096),), ((512, 2048),) * 8),
)
DRY_LOAD = Load(num_tokens=3, contexts=((150, 1),), chunks=(((5, 20), (3, 3)),))


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there, too")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, interpreted, not timed")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        parser.exit(2, "This times kernels on a GPU, and torch sees none. Try --dry.\n")

    device = "cpu" if options.dry else "cuda"
    dtype = torch.float32 if options.dry else torch.bfloat16  # interpreted bfloat16 is wrong
    ceiling = None if options.dry else measure_ceiling()
    figures = []
    for model in MODELS:
        layer = Layer(model, dtype, device)
        for case in cases_of(layer, DRY_LOAD if options.dry else LOAD):
            figures.append(measure(case, ERROR_LIMITS[dtype], ceiling))
            print(line_of(figures[-1]), flush=True)
    if options.json:
        report = {
            "device": "interpreter" if options.dry else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "dtype": str(dtype).removeprefix("torch."),
            "ceiling": asdict(ceiling) if ceiling else None,
            "figures": [asdict(figure) for figure in figures],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of this module's docstring."""


def cases_of(layer: Layer, load: Load) -> Iterator[Case]:
    """Every kernel of one layer, one after the other, so that only one's tensors live at a time."""
    yield norm_case(layer, load.num_tokens)
    yield activation_case(layer, load.num_tokens)
    yield rotary_case(layer, load.num_tokens)
    for contexts in load.contexts:
        yield decode_case(layer, contexts)
    for chunks in load.chunks:
        yield prefill_case(layer, chunks)


def norm_case(layer: Layer, num_tokens: int) -> Case:
    """Two rows read, two written."""
    x, residual = layer.randn(2, num_tokens, layer.model.hidden)
    weight = layer.randn(layer.model.hidden)
    return Case(
        layer.model.name,
        "add_rms_norm",
        f"{num_tokens} tokens",
        lambda: norm.add_rms_norm(x, residual, weight, 1e-5),
        lambda: reference_add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5),
        num_bytes=4 * x.nbytes + weight.nbytes,
    )


def activation_case(layer: Layer, num_tokens: int) -> Case:
    """Two parts read, one written."""
    x = layer.randn(num_tokens, 2 * layer.model.features)
    return Case(
        layer.model.name,
        "silu_mul",
        f"{num_tokens} tokens",
        lambda: activation.silu_mul(x),
        lambda: reference_silu_mul(x.double()),
        num_bytes=x.nbytes * 3 // 2,
    )


def rotary_case(layer: Layer, num_tokens: int) -> Case:
    """One row read, and written as queries and KV."""
    model = layer.model
    num_heads = model.num_q_heads + 2 * model.num_kv_heads
    qkv = layer.randn(num_tokens, num_heads * model.head_size)
    angles = torch.randn(num_tokens, model.head_size, device=layer.device)
    slots = torch.randperm(num_tokens, device=layer.device)
    caches = layer.caches(-(-num_tokens // BLOCK_SIZE))

    def rotate(op: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        k_cache, v_cache = (cache.to(dtype) for cache in caches)
        heads = {"num_q_heads": model.num_q_heads, "num_kv_heads": model.num_kv_heads}
        q = op(qkv.to(dtype), slots, angles, slots, k_cache, v_cache, **heads)
        return q, k_cache, v_cache

    return Case(
        model.name,
        "rope_and_store_kv",
        f"{num_tokens} tokens",
        lambda: rotate(rotary.rope_and_store_kv, layer.dtype),
        lambda: rotate(reference_rope_and_store_kv, torch.float64),
        num_bytes=2 * qkv.nbytes + angles.nbytes,
    )


def decode_case(layer: Layer, contexts: tuple[int, ...]) -> Case:
    """One token of each row: bound by the KV that is read once."""
    table, lens, num_blocks = layer.tables(contexts)
    k_cache, v_cache = layer.caches(num_blocks)
    q = layer.queries(len(contexts))
    scale = layer.model.head_size**-0.5
    return Case(
        layer.model.name,
        "paged_decode_attention",
        sizes_of(contexts),
        lambda: decode_attention.paged_decode_attention(q, k_cache, v_cache, table, lens, scale),
        lambda: reference_paged_decode_attention(
            q.double(), k_cache.double(), v_cache.double(), table, lens, scale
        ),
        num_bytes=2 * q.nbytes + 2 * sum(contexts) * k_cache[0, 0].nbytes,
    )


def prefill_case(layer: Layer, chunks: tuple[tuple[int, int], ...]) -> Case:
    """Chunks of prompts: bound by the tensor cores."""
    table, lens, num_blocks = layer.tables([context for _, context in chunks])
    k_cache, v_cache = layer.caches(num_blocks)
    starts = torch.tensor([0, *(tokens for tokens, _ in chunks)], device=layer.device)
    cu_seqlens = starts.cumsum(0).to(torch.int32)
    q = layer.queries(sum(tokens for tokens, _ in chunks))
    scale = layer.model.head_size**-0.5
    num_pairs = sum(tokens * context - math.comb(tokens, 2) for tokens, context in chunks)
    return Case(
        layer.model.name,
        "paged_prefill_attention",
        sizes_of([f"{tokens}/{context}" for tokens, context in chunks]),
        lambda: prefill_attention.paged_prefill_attention(
            q, k_cache, v_cache, table, cu_seqlens, lens, scale
        ),
        lambda: reference_paged_prefill_attention(
            q.double(), k_cache.double(), v_cache.double(), table, cu_seqlens, lens, scale
        ),
        num_bytes=2 * q.nbytes + 2 * k_cache.nbytes,
        num_flops=4 * num_pairs * q[0].numel(),
    )


def sizes_of(rows: Sequence[object]) -> str:
    """Name a batch by its runs of equal rows: 1 x 32768, 63 x 1024."""
    return ", ".join(f"{len(list(run))} x {size}" for size, run in groupby(rows))


def measure_ceiling() -> Ceiling:
    """Copy a gigabyte, and multiply large matrices: what everything else is compared with."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    copy_s = seconds_of(lambda: target.copy_(source))
    matmul_s = seconds_of(lambda: matrix @ matrix)
    return Ceiling(
        bytes_per_s=2 * source.nbytes / copy_s,
        flops_per_s=2 * len(matrix) ** 3 / matmul_s,
        l2_bytes=torch.cuda.get_device_properties().L2_cache_size,
    )


def measure(case: Case, error_limit: float, ceiling: Ceiling | None) -> Figure:
    """Compare with the reference, then time; a wrong result ends the run."""
    error = max(map(relative_error, tensors_of(case.run()), tensors_of(case.reference())))
    if not error <= error_limit:
        raise SystemExit(
            f"{case.kernel} ({case.model}, {case.size}) is wrong, so it is not timed: "
            f"its relative error is {error:.2g}, its limit {error_limit:.2g}"
        )
    if ceiling is None:
        return Figure(case.model, case.kernel, case.size, error)
    time_s = seconds_of(case.run)
    return Figure(
        case.model,
        case.kernel,
        case.size,
        error,
        time_us=time_s * 1e6,
        share_of_copy_bandwidth=case.num_bytes / time_s / ceiling.bytes_per_s,
        share_of_matmul_rate=case.num_flops / time_s / ceiling.flops_per_s,
        fits_l2=case.num_bytes <= ceiling.l2_bytes,
    )


def tensors_of(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One result or several, as several."""
    return (result,) if isinstance(result, Tensor) else result


def relative_error(seen: Tensor, wanted: Tensor) -> float:
    """Length of the difference over the length of what is wanted; NaN if either has one."""
    return float((seen.double() - wanted).norm() / wanted.norm())


def seconds_of(run: Callable[[], object]) -> float:
    """Median time of a call among the replays of a CUDA graph of many."""
    time_ms: Any = triton.testing.do_bench_cudagraph(run, rep=50, return_mode="median")
    return float(time_ms) / 1e3


def line_of(figure: Figure) -> str:
    """One line of the table."""
    name = (
        f"{figure.model:14} {figure.kernel:24} {figure.size:26} error {figure.relative_error:.1e}"
    )
    if figure.time_us is None:
        return f"{name}  not timed"
    return (
        f"{name}  {figure.time_us:9.1f} us  {figure.share_of_copy_bandwidth:6.1%} of copy  "
        f"{figure.share_of_matmul_rate:6.1%} of matmul{'  (in L2)' if figure.fits_l2 else ''}"
    )


if __name__ == "__main__":
    main()
