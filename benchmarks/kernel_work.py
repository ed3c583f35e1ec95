"""What each kernel must move and compute in one call, without a GPU: `make gpu-compile`.

The sizes are those that `benchmarks/kernel_speed.py` times. No tensor has any memory.
"""

from collections.abc import Iterable

import torch

from fp8_cases import fp8_cases_of
from kernel_cases import Case, Layer, cases_of
from kernel_speed import LOAD, MODELS


def table_of(cases: Iterable[Case]) -> str:
    """One line a case; with few FLOPs a byte, memory is the limit."""
    heading = f"{'model':14} {'kernel':24} {'size':28} {'MB':>9} {'GFLOP':>9} FLOP/byte"
    return "\n".join((heading, *map(_line, cases)))


def _line(case: Case) -> str:
    moved = f"{case.model:14} {case.kernel:24} {case.size:28} {case.num_bytes / 1e6:9.2f}"
    if not case.num_flops:  # memory alone limits it: nobody counts
        return f"{moved} {'-':>9} {'-':>9}"
    intensity = case.num_flops / case.num_bytes
    return f"{moved} {case.num_flops / 1e9:9.2f} {intensity:9.1f}"


def main() -> None:
    """Print the table."""
    layers = (Layer(model, torch.bfloat16, "meta") for model in MODELS)
    both = (cases_of, fp8_cases_of)
    print(table_of(case for layer in layers for make in both for case in make(layer, LOAD)))


if __name__ == "__main__":
    main()
