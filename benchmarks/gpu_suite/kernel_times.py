"""Every kernel checked against float64, then timed beside what this device reaches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

import fp8_cases
import input_cases
import kernel_cases as cases
from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.prefill_times import PROMPTS, by_sdpa, chunk_of
from gpu_suite.record import Absent, Broken, Figure, Found
from kernel_speed import error_limit, relative_error, tensors_of

MODELS = {
    "llama-3.1-8b": cases.Model("llama-3.1-8b", 4096, 14336, 32, 8, 128, 128_256),
    "qwen2.5-0.5b": cases.Model("qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151_936),
}
DRY_MODEL = cases.Model("dry", 48, 128, 4, 2, 16, 300)
# So many that the bytes are several times those of an L2 cache, which is faster than memory.
POINTWISE_TOKENS = 16384
SAMPLING_ROWS = 512
POINTWISE_CASES = {
    "add_rms_norm": cases.norm_case,
    "add_rms_norm_fp8": fp8_cases.norm_fp8_case,
    "embed_rms_norm": cases.embedding_case,
    "silu_mul": cases.activation_case,
    "gelu_tanh_mul": cases.gelu_case,
    "silu_mul_fp8": fp8_cases.silu_fp8_case,
    "gelu_tanh_mul_fp8": fp8_cases.gelu_fp8_case,
    "quantize_rows": fp8_cases.rows_case,
    "rope_and_store_kv": cases.rotary_case,
    "lay_out_step": input_cases.step_case,
    "lay_out_draws": input_cases.draws_case,
    "write_rows": input_cases.writes_case,
    "keep_tokens": input_cases.keep_case,
}
FP8_TOKENS = {64: True, 4096: False}
EXPERTS_TOKENS = {16: True, 4096: False}
"""A decode, whose weight is what is read, and a prompt, where arithmetic decides."""
ASKED_FOR_CASES = {
    "penalise": cases.penalty_case,
    "forbid": cases.mask_case,
    "token_likelihoods": cases.likelihood_case,
}
QUANTIZED_ROWS = 16
ROW_PRODUCT_ROWS = (1, 64)
CONTEXTS = {"1 x 32k": (1, 32768), "16 x 8k": (16, 8192), "64 x 1k": (64, 1024)}
CONTEXTS["256 x 1k"] = (256, 1024)


COPY, PRODUCT = "copy bandwidth", "matrix product"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the device reaches, measured in this run."""

    bytes_per_s: float
    flops_per_s: float


Named = tuple[str, Callable[[cases.Layer], cases.Case], bool]
"""A figure's name, its case, and whether it is a share of the bandwidth."""


def measure(machine: Machine) -> Iterator[Found]:
    """Give ceilings first, then each kernel; last how many are not right, which are not timed."""
    ceiling = _ceiling(machine)
    yield Figure(COPY, ceiling.bytes_per_s / 1e9, "GB/s")
    yield Figure(PRODUCT, ceiling.flops_per_s / 1e12, "TFLOP/s")
    wrong = len(machine.broken)
    for model, sizes in MODELS.items():
        if model not in machine.models:
            continue
        layer = cases.Layer(DRY_MODEL if machine.is_dry else sizes, machine.dtype, machine.device)
        for named in chain(
            _pointwise(model, machine),
            _products(model, machine),
            _samplings(model, machine),
            _decodes(model, machine),
            _prefills(model, machine),
            _asked_for(model, machine),
            _quantized(model, machine),
            _row_products(model, machine),
            _experts(model, machine),
        ):
            if named[0] in machine.passed:
                continue
            for found in tried(named[0], partial(_timed, named, layer, machine, ceiling), machine):
                wrong += isinstance(found, Broken)
                yield found
        timed = partial(_rate, layer=layer, machine=machine, ceiling=ceiling)
        yield from by_sdpa(model, layer, machine, timed)
    yield Figure(names.WRONG, wrong, "wrong", "named above" if wrong else "")


def _rate(
    name: str,
    make: Callable[[cases.Layer], cases.Case],
    layer: cases.Layer,
    machine: Machine,
    ceiling: Ceiling,
) -> Iterator[Found]:
    return _timed((name, make, False), layer, machine, ceiling)


def _timed(named: Named, layer: cases.Layer, machine: Machine, ceiling: Ceiling) -> Iterator[Found]:
    name, make, of_copy = named
    machine.tidy()
    case = make(layer)
    try:
        error = _error(case)
    except torch.OutOfMemoryError:  # float64 takes tens of gigabytes at the largest sizes
        yield Absent(name, "not timed: its check did not fit")
        return
    limit = error_limit(case, machine.dtype)
    if not error <= limit:
        yield Broken(
            name, f"differs from float64 by {error:.2g} of its length, at most {limit:.2g}"
        )
        return
    yield _figure(name, case, machine.seconds_of(case.run), ceiling, of_copy=of_copy)


def _error(case: cases.Case) -> float:
    return max(map(relative_error, tensors_of(case.run()), tensors_of(case.reference())))


def _pointwise(model: str, machine: Machine) -> Iterator[Named]:
    num_tokens = 3 if machine.is_dry else POINTWISE_TOKENS
    for kernel, case in POINTWISE_CASES.items():
        yield names.pointwise(kernel, model), partial(case, num_tokens=num_tokens), True


def _products(model: str, machine: Machine) -> Iterator[Named]:
    if not machine.has_fp8:
        return
    for num_tokens, of_copy in FP8_TOKENS.items():
        case = partial(fp8_cases.product_case, num_tokens=3 if machine.is_dry else num_tokens)
        yield names.fp8_product(num_tokens, model), case, of_copy


def _samplings(model: str, machine: Machine) -> Iterator[Named]:
    for cut in cases.CUTS:
        num_rows = 2 if machine.is_dry else SAMPLING_ROWS
        yield (
            names.sampling(cut, model),
            partial(cases.sampling_case, num_rows=num_rows, cut=cut),
            True,
        )


def _decodes(model: str, machine: Machine) -> Iterator[Named]:
    for label, (rows, context) in CONTEXTS.items():
        for contexts, suffix in ((even(rows, context), ""), (skewed(rows, context), " skewed")):
            if contexts == even(rows, context) and suffix:
                continue  # one row alone has nothing to be skewed against
            sizes = (20, 3) if machine.is_dry else contexts
            name = names.decode(label + suffix, model)
            yield name, partial(cases.decode_case, contexts=sizes), True


def _prefills(model: str, machine: Machine) -> Iterator[Named]:
    for label in PROMPTS:
        case = partial(cases.prefill_case, chunks=(chunk_of(label, machine),))
        yield names.prefill(label, model), case, False


def _asked_for(model: str, machine: Machine) -> Iterator[Named]:
    """What a row costs only where its request asks for it."""
    num_rows = 2 if machine.is_dry else SAMPLING_ROWS
    for kernel, case in ASKED_FOR_CASES.items():
        yield names.pointwise(kernel, model), partial(case, num_rows=num_rows), True


def _quantized(model: str, machine: Machine) -> Iterator[Named]:
    """Weights of a byte, which few rows read once, and keys and values of one."""
    rows = 3 if machine.is_dry else QUANTIZED_ROWS
    name = names.pointwise(f"quantized_linear of {rows} rows", model)
    yield name, partial(cases.int8_case, num_tokens=rows), True
    name = names.pointwise(f"int4_linear of {rows} rows", model)
    yield name, partial(cases.int4_case, num_tokens=rows), True
    name = names.pointwise(f"add_adapters of {rows} rows", model)
    yield name, partial(cases.adapters_case, num_tokens=rows), True
    if not machine.has_fp8:
        return
    for label, (num_rows, context) in CONTEXTS.items():
        contexts = (20, 3) if machine.is_dry else even(num_rows, context)
        make = partial(cases.decode_case, contexts=contexts, is_fp8=True)
        yield names.decode(f"{label}, KV in FP8", model), make, True
    for label in PROMPTS:
        chunks = (chunk_of(label, machine),)
        make = partial(cases.prefill_case, chunks=chunks, is_fp8=True)
        yield names.prefill(f"{label}, KV in FP8", model), make, False


def _row_products(model: str, machine: Machine) -> Iterator[Named]:
    """Products of a decode with norm, gate and residual, beside cuBLAS and ops of their own."""
    both = {"row_product": cases.gated_rows_case, "add_row_product": cases.added_rows_case}
    for rows in ROW_PRODUCT_ROWS:
        for kernel, case in both.items():
            name = f"{kernel} of {rows} rows"
            make = partial(case, num_rows=3 if machine.is_dry else rows)
            yield names.pointwise(name, model), make, True
            of_cublas = partial(make, is_separate=True)
            yield names.pointwise(f"{name}, cuBLAS", model), of_cublas, True


def _experts(model: str, machine: Machine) -> Iterator[Named]:
    """Mixtures of experts of the model's own size: a decode, and a prompt."""
    for num_tokens, of_copy in EXPERTS_TOKENS.items():
        tokens = 3 if machine.is_dry else num_tokens
        name = f"fused_experts of {num_tokens} tokens"
        yield names.pointwise(name, model), partial(cases.experts_case, num_tokens=tokens), of_copy
        if not machine.has_fp8:
            continue
        for is_dynamic, kind in ((False, "weights in FP8"), (True, "FP8 with FP8")):
            make = partial(fp8_cases.experts_fp8_case, num_tokens=tokens, is_dynamic=is_dynamic)
            yield names.pointwise(f"{name}, {kind}", model), make, of_copy
    tokens = 3 if machine.is_dry else POINTWISE_TOKENS
    make = partial(cases.routing_case, num_tokens=tokens)
    yield names.pointwise("route_experts", model), make, True


def even(rows: int, context: int) -> tuple[int, ...]:
    """All rows alike."""
    return (context,) * rows


def skewed(rows: int, context: int) -> tuple[int, ...]:
    """As many tokens, half of them in one row."""
    if rows == 1:
        return even(rows, context)
    total = rows * context
    rest: Sequence[int] = even(rows - 1, (total - total // 2) // (rows - 1))
    return (total // 2, *rest)


def _figure(
    name: str, case: cases.Case, time_s: float, ceiling: Ceiling, *, of_copy: bool
) -> Figure:
    note = f"{time_s * 1e6:,.1f} us"
    if of_copy:
        share = case.num_bytes / time_s / ceiling.bytes_per_s
        return Figure(name, share, "share", f"of copy bandwidth, {note}")
    rate = case.num_flops / time_s
    share_text = f"{rate / ceiling.flops_per_s:.1%} of the matrix product, {note}"
    return Figure(name, rate / 1e12, "TFLOP/s", share_text)


def _ceiling(machine: Machine) -> Ceiling:
    """Copy a gigabyte, and multiply large matrices: what everything else is compared with.

    The faster of two copies: the device's own, and one by a kernel.
    """
    num_bytes, side = (1 << 16, 64) if machine.is_dry else (1 << 30, 8192)
    source = torch.ones(num_bytes // 4, device=machine.device)
    target = torch.empty_like(source)
    matrix = torch.randn(side, side, dtype=machine.dtype, device=machine.device)
    copy_s = machine.seconds_of(lambda: target.copy_(source))
    kernel_s = machine.seconds_of(lambda: torch.mul(source, 1, out=target))
    product_s = machine.seconds_of(lambda: matrix @ matrix)
    return Ceiling(2 * num_bytes / min(copy_s, kernel_s), 2 * side**3 / product_s)
