"""Measures on this CPU, in about half a second, in which type products are faster."""

import math
import time
from collections.abc import Callable

import torch

from paceline_engine.loading.dtype import (
    DtypeChoice,
    Processor,
    ProductTimes,
    Trial,
    bfloat16_instructions,
    dtype_of_cpu,
    dtype_of_gpu,
)
from paceline_engine.model.layers.block_linear import (
    StoredWeight,
    block_linear,
    blocks_of_zeros,
)
from paceline_engine.model.layers.linear import Linear, linear
from paceline_engine.model.layers.product_choice import one_thread
from paceline_engine.model.layers.quantized_linear import quantized_linear
from paceline_engine.model.ops import ops_for
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.cpu import NativeOps
from paceline_kernels.cpu.cpu_features import this_cpu

ROWS = (1, 16, 128)
"""A token by itself, a batch of decodes, a prompt."""
# An MLP's sizes: 32 MiB in float32, which leave the caches of the cores while the others run.
_OUTPUTS, _INPUTS = 4096, 2048
_BUDGET_S = 0.3
_MIN_ROUNDS = 3
_CPU = torch.device("cpu")


def choose_dtype(settings: Settings, device: torch.device) -> DtypeChoice:
    """Choose the type that the model computes in on this device."""
    if device.type != "cpu":
        return dtype_of_gpu(settings.dtype)
    return dtype_of_cpu(settings.dtype, processor(), lambda: measure(settings.quantization))


def processor() -> Processor:
    """Look at the processor and at the ops that serve on it."""
    ops = [ops_for(_CPU, dtype) for dtype in (torch.float32, torch.bfloat16)]
    has_ops = isinstance(ops[1], NativeOps) or not isinstance(ops[0], NativeOps)
    return Processor(bfloat16_instructions(this_cpu().features), has_ops)


def measure(
    quantization: Quantization = "none",
    *,
    outputs: int = _OUTPUTS,
    inputs: int = _INPUTS,
    clock: Callable[[], float] = time.thread_time,
) -> Trial:
    """Time products [rows, inputs] with a weight [outputs, inputs] as a layer would run them.

    The best of as many rounds as the budget has time for, three at least. One thread computes, and
    its CPU time counts: several would wait for whichever of them a busy machine has stopped.
    """
    with torch.inference_mode(), one_thread():
        # The time of a product does not depend on the values, except for denormals.
        weight = torch.linspace(-1.0, 1.0, inputs).repeat(outputs, 1)
        products = {
            dtype: _product(weight.to(dtype), quantization)
            for dtype in (torch.float32, torch.bfloat16)
        }
        xs = {
            dtype: [torch.linspace(-1.0, 1.0, inputs).repeat(rows, 1).to(dtype) for rows in ROWS]
            for dtype in products
        }
        best = {dtype: [math.inf] * len(ROWS) for dtype in products}
        started, rounds = clock(), 0
        while rounds < _MIN_ROUNDS or clock() - started < _BUDGET_S:
            for place in range(len(ROWS)):
                for dtype, product in products.items():
                    before = clock()
                    product(xs[dtype][place])
                    best[dtype][place] = min(best[dtype][place], clock() - before)
            rounds += 1
    float32, bfloat16 = (ProductTimes(*times) for times in best.values())
    return Trial(float32, bfloat16, is_quantized=quantization != "none")


def _product(weight: torch.Tensor, quantization: Quantization) -> Linear:
    if quantization == "none":
        return linear(weight)
    if quantization == "as_stored":
        return block_linear(StoredWeight((blocks_of_zeros(*weight.shape),)))
    return quantized_linear(weight, to=quantization)
