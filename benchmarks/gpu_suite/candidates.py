"""What block sizes are tried of, and on what: a bounded list for each class of calls."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import fp8_cases
import kernel_cases as cases
from gpu_suite.machine import Machine
from paceline_kernels.tuned import SPACES, Blocks, Shape

CHOICES: Mapping[str, Mapping[str, Sequence[int]]] = {
    "prefill_attention": {
        "rows": (64, 128),
        "tokens": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
    },
    "decode_attention": {
        "tokens": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
        "programs": (2, 3, 4),
    },
    "quantized_linear": {
        "outputs": (32, 64, 128),
        "inputs": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
    },
    "row_product": {
        "outputs": (64, 128),
        "inputs": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4, 5),
    },
    "int4_linear": {
        "outputs": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
        "programs": (256, 512, 1024),
    },
    "fused_experts": {
        "outputs": (64, 128),
        "inputs": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (3, 4),
    },
    "rms_norm": {"num_warps": (1, 2, 4, 8, 16)},
    "quantize_rows": {"columns": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)},
    "gate_mul": {"columns": (512, 1024, 2048, 4096), "num_warps": (4, 8)},
    "gate_mul_fp8": {"columns": (2048, 4096, 8192, 16384), "num_warps": (4, 8, 16, 32)},
    "rope_and_store_kv": {"heads": (4, 8, 16, 32), "num_warps": (2, 4, 8)},
}
_HEADS = {64: (32, 8), 128: (32, 8), 256: (8, 4)}
"""Query and KV heads of models with heads of such a size: Llama 3.2 1B, 3.1 8B, Gemma 3 4B."""
_FEATURES = (3072, 8192, 14336, 28672)
"""Hidden sizes of Qwen3 0.6B, Llama 3.2 1B, 3.1 8B and 3.1 70B: a class of rows each."""
_TOKENS_OF_TILES = {16: 16, 64: 128, 128: 1024}
"""Tokens of eight experts, two each, whose tiles have so many rows."""
_DRY_TOKENS = 128
"""More take Triton's interpreter a minute and longer."""
_CONTEXTS = (2048,) * 64
_CHUNKS = ((2048, 2048), (512, 4096))


@dataclass(frozen=True, slots=True)
class Question:
    """Which blocks serve a class of calls best."""

    kernel: str
    shape: Shape
    make: Callable[[], cases.Case]

    @property
    def name(self) -> str:
        """For a person."""
        return ", ".join((self.kernel, *(f"{key} {value}" for key, value in self.shape.items())))

    def candidates(self, standing: Blocks) -> Iterator[Blocks]:
        """Give the blocks that serve today, then others."""
        yield standing
        space, choices = SPACES[self.kernel].blocks, CHOICES[self.kernel]
        for values in product(*choices.values()):
            blocks = {**standing, **dict(zip(choices, values, strict=True))}
            if blocks != standing and all(blocks[name] in space[name] for name in blocks):
                yield blocks


def questions(machine: Machine, *, has_fp8: bool) -> Iterator[Question]:
    """Every class that models of today make, each with a case that fills a GPU."""
    dry = machine.is_dry
    bits = 8 * machine.dtype.itemsize
    for size, (num_q, num_kv) in _HEADS.items():
        model = cases.Model(f"heads of {size}", 48, 80, *((4, 2) if dry else (num_q, num_kv)), size)
        layer = cases.Layer(model, machine.dtype, machine.device)
        for is_fp8 in (False, True) if has_fp8 else (False,):
            classes: Shape = {"kv": "fp8" if is_fp8 else "own", "bits": bits, "columns": size}
            chunks = ((5, 20),) if dry else _CHUNKS
            make = partial(cases.prefill_case, layer, chunks, is_fp8=is_fp8)
            yield Question("prefill_attention", {**classes, "bounds": "none"}, make)
            contexts = (20, 3) if dry else _CONTEXTS
            make = partial(cases.decode_case, layer, contexts, is_fp8=is_fp8)
            yield Question("decode_attention", classes, make)
        make = partial(cases.rotary_case, layer, 3 if dry else 4096)
        yield Question("rope_and_store_kv", {"columns": size}, make)
    yield from _products_and_rows(machine, bits)
    yield from _experts(machine, bits, has_fp8=has_fp8)


def _products_and_rows(machine: Machine, bits: int) -> Iterator[Question]:
    dry = machine.is_dry
    model = cases.Model("llama-3.1-8b", *((48, 128) if dry else (4096, 14336)), 32, 8, 128)
    layer = cases.Layer(model, machine.dtype, machine.device)
    for rows in (16, 64, 128):
        make = partial(cases.int8_case, layer, rows if rows < 128 else 2 * rows)
        yield Question("quantized_linear", {"bits": bits, "rows": rows}, make)
        make = partial(cases.gated_rows_case, layer, rows)
        yield Question("row_product", {"bits": bits, "rows": rows}, make)
        make = partial(cases.int4_case, layer, rows if rows < 128 else 2 * rows)
        yield Question("int4_linear", {"bits": bits, "rows": rows}, make)
    yield Question("quantize_rows", {}, partial(fp8_cases.rows_case, layer, 3 if dry else 4096))
    yield Question("gate_mul", {}, partial(cases.activation_case, layer, 3 if dry else 4096))
    for hidden in (1024, 2048, 4096, 8192):
        wide = cases.Layer(
            cases.Model(f"hidden {hidden}", hidden, 80, 32, 8, 128), machine.dtype, machine.device
        )
        for out, case in (("own", cases.norm_case), ("fp8", fp8_cases.norm_fp8_case)):
            make = partial(case, wide, 3 if dry else 4096)
            yield Question("rms_norm", {"out": out, "columns": hidden}, make)
    for features in _FEATURES:
        wide = cases.Layer(
            cases.Model(f"features {features}", 4096, features, 32, 8, 128),
            machine.dtype,
            machine.device,
        )
        columns = 1 << (features - 1).bit_length()
        make = partial(fp8_cases.silu_fp8_case, wide, 3 if dry else 4096)
        yield Question("gate_mul_fp8", {"columns": columns}, make)


def _experts(machine: Machine, bits: int, *, has_fp8: bool) -> Iterator[Question]:
    dry = machine.is_dry
    model = cases.Model("mixtral-8x7b", *((48, 80) if dry else (4096, 14336)), 32, 8, 128)
    layer = cases.Layer(model, machine.dtype, machine.device)
    kinds: dict[str, Callable[..., cases.Case]] = {"own": cases.experts_case}
    if has_fp8:
        kinds["fp8"] = fp8_cases.experts_fp8_case
        kinds["fp8_dynamic"] = partial(fp8_cases.experts_fp8_case, is_dynamic=True)
    for weight, case in kinds.items():
        for rows, num_tokens in _TOKENS_OF_TILES.items():
            if dry and num_tokens > _DRY_TOKENS:
                continue
            make = partial(case, layer, num_tokens)
            yield Question("fused_experts", {"weight": weight, "bits": bits, "rows": rows}, make)
