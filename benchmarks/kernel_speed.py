"""Time of every kernel on this machine's GPU, beside the rates that its memory and cores reach.

    python benchmarks/kernel_speed.py [--json PATH]
    python benchmarks/kernel_speed.py --dry   # tiny shapes in Triton's interpreter, nothing timed

A kernel is timed only after its result agreed with its reference in float64. Times are of a CUDA
graph's replays, as the engine decodes, so that they hold no launch overhead; the same tensors are
read again and again, and a case whose bytes fit the L2 cache says so.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch
import triton
from torch import Tensor

from fp8_cases import fp8_cases_of
from input_cases import input_cases_of
from kernel_cases import Case, Layer, Load, Model, cases_of

ERROR_LIMITS = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class DeviceCeiling:
    """What the device reaches, measured in this run."""

    bytes_per_s: float
    flops_per_s: float
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class KernelFigure:
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
    Model("smollm2-135m", 576, 1536, 9, 3, 64, 49_152),
    Model("llama-3.1-8b", 4096, 14336, 32, 8, 128, 128_256),
)
LOAD = Load(
    num_tokens=256,
    num_rows=256,
    contexts=(
        (32768,),
        (8192,) * 16,
        (1024,) * 64,
        (1024,) * 256,
        (32768, *(1024,) * 63),
    ),
    chunks=(((4096, 4096),), ((512, 2048),) * 8),
)
# Heads as they are; what is only longer in the interpreter is not, nor is a second model run.
DRY_MODELS = (replace(MODELS[0], hidden=320, features=576, vocab=300),)
DRY_LOAD = Load(num_tokens=3, num_rows=2, contexts=((150, 1),), chunks=(((5, 20), (3, 3)),))


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
    for model in DRY_MODELS if options.dry else MODELS:
        layer = Layer(model, dtype, device)
        load = DRY_LOAD if options.dry else LOAD
        makers = (cases_of, fp8_cases_of, input_cases_of)
        for case in chain.from_iterable(make(layer, load) for make in makers):
            figures.append(measure(case, error_limit(case, dtype), ceiling))
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
    """Keep the lines of this module's docstring."""


def measure_ceiling() -> DeviceCeiling:
    """Copy a gigabyte and multiply large matrices, the rates that kernels are compared with."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    copy_s = seconds_of(lambda: target.copy_(source))
    matmul_s = seconds_of(lambda: matrix @ matrix)
    return DeviceCeiling(
        bytes_per_s=2 * source.nbytes / copy_s,
        flops_per_s=2 * len(matrix) ** 3 / matmul_s,
        l2_bytes=torch.cuda.get_device_properties().L2_cache_size,
    )


def error_limit(case: Case, dtype: torch.dtype) -> float:
    """Return how far the result may be from the reference's."""
    return max(ERROR_LIMITS[dtype], case.coarseness)


def measure(case: Case, limit: float, ceiling: DeviceCeiling | None) -> KernelFigure:
    """Compare with the reference, then time; a wrong result ends the run."""
    error = max(map(relative_error, tensors_of(case.run()), tensors_of(case.reference())))
    if not error <= limit:
        raise SystemExit(
            f"{case.kernel} ({case.model}, {case.size}) is wrong, so it is not timed: "
            f"its relative error is {error:.2g}, its limit {limit:.2g}"
        )
    if ceiling is None:
        return KernelFigure(case.model, case.kernel, case.size, error)
    time_s = seconds_of(case.run)
    return KernelFigure(
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
    """Return one result or several as a list."""
    return (result,) if isinstance(result, Tensor) else result


def relative_error(seen: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference over that of the reference; NaN if either has one."""
    exact = wanted.double()
    return float((seen.double() - exact).norm() / exact.norm())


def seconds_of(run: Callable[[], object]) -> float:
    """Median time of a call among the replays of a CUDA graph of many."""
    time_ms: Any = triton.testing.do_bench_cudagraph(run, rep=50, return_mode="median")
    return float(time_ms) / 1e3


def line_of(figure: KernelFigure) -> str:
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
