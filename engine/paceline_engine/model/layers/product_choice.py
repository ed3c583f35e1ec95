"""Chooses between the compiled product in bfloat16 and oneDNN's, for each shape of a weight.

Both are timed once in a process for the rows of decodes and of prompts, on one thread by its CPU
time, which a busy machine blurs least. oneDNN is taken where it is faster by more than it costs:
with one product of oneDNN, a step runs op by op instead of in one call (`runner/layer_stack.py`).
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline_engine.model.layers.packed_linear import PackedLinear
from paceline_kernels.cpu import Matmul

ADVANTAGE = 1.25
"""How many times as fast oneDNN must be.

Op by op a decode of one token took 10.1 ms, in one call 7.5.
"""
ROWS = (1, 16, 64, 256, 2048)
_MIN_NUMBERS = 1 << 18
"""Weights with fewer numbers are not timed: their products take no longer than the call."""
_MAX_PRODUCTS = 1 << 32
"""Multiply-adds of a timed product at most: larger ones would take seconds, and are left out."""
_REPEATS = 3

_log = logging.getLogger(__name__)

Product = Callable[[Tensor], Tensor]


def prefers_onednn(ours_s: Sequence[float], onednn_s: Sequence[float]) -> bool:
    """Compare the times of the same products, each as important as the others."""
    ratios = [math.log(ours / theirs) for ours, theirs in zip(ours_s, onednn_s, strict=True)]
    return sum(ratios) / len(ratios) > math.log(ADVANTAGE)


@functools.cache
def is_for_onednn(matmul: Matmul, outputs: int, inputs: int) -> bool:
    """Measure both products of a weight [outputs, inputs] in bfloat16, once for each shape."""
    if outputs * inputs < _MIN_NUMBERS:
        return False
    weight = torch.randn(outputs, inputs).bfloat16()
    ours, theirs = matmul.pack(weight), PackedLinear(weight)
    rows = [count for count in ROWS if count * outputs * inputs <= _MAX_PRODUCTS] or [1]
    with one_thread():
        times = [
            _timed(torch.randn(count, inputs).bfloat16(), lambda x: matmul(x, ours), theirs)
            for count in rows
        ]
    ours_s, onednn_s = zip(*times, strict=True)
    is_chosen = prefers_onednn(ours_s, onednn_s)
    told = ", ".join(
        f"{count} rows {1e3 * mine:.2f} and {1e3 * other:.2f} ms"
        for count, (mine, other) in zip(rows, times, strict=True)
    )
    name = "oneDNN's" if is_chosen else "the compiled one"
    _log.info("product of %d x %d: %s; compiled and oneDNN: %s", outputs, inputs, name, told)
    return is_chosen


@contextmanager
def one_thread() -> Iterator[None]:
    """Let one thread compute: its CPU time is then what a product takes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _timed(x: Tensor, *products: Product) -> tuple[float, ...]:
    """Return the shortest CPU time of each, in turn."""
    times = [[_once(product, x) for product in products] for _ in range(_REPEATS + 1)]
    return tuple(min(column) for column in zip(*times[1:], strict=True))


def _once(product: Product, x: Tensor) -> float:
    began = time.thread_time()
    product(x)
    return time.thread_time() - began
