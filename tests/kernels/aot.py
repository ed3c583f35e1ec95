"""Compiles every kernel for three generations of GPUs, without one: `make gpu-compile`.

The launchers themselves are called, on small CPU tensors, under a driver that names its target
and launches nothing. So what is compiled is what the engine would launch: dtypes, constants,
divisibility and number of warps included.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from paceline_kernels.activation.kernel import gelu_tanh_mul, silu_mul
from paceline_kernels.checks import Exponents
from paceline_kernels.decode_attention.kernel import paged_decode_attention
from paceline_kernels.fp8 import CODES, EXPONENTS
from paceline_kernels.norm.kernel import add_rms_norm, rms_norm
from paceline_kernels.prefill_attention.kernel import paged_prefill_attention
from paceline_kernels.quantized.kernel import quantized_linear
from paceline_kernels.rotary.kernel import rope_and_store_kv
from paceline_testing.gpus import GPUS, WARP, Gpu, occupancy, programs_per_multiprocessor

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that a kernel is compiled for."""

    name: str
    hidden: int
    features: int
    num_q_heads: int
    num_kv_heads: int
    head_size: int
    has_qk_norm: bool = False
    is_gemma: bool = False
    """Norms with float32 weights, GELU, a window and a soft cap."""
    dtype: torch.dtype = torch.bfloat16
    has_fp8: bool = False
    """Of keys and values."""


SHAPES = (
    Shape("smollm2-135m", 576, 1536, 9, 3, 64),
    Shape("llama-3.1-8b", 4096, 14336, 32, 8, 128),
    Shape("qwen3-0.6b", 1024, 3072, 16, 8, 128, has_qk_norm=True),
    Shape("head-96", 3072, 8192, 32, 32, 96),
    Shape("head-256", 2560, 10240, 8, 4, 256),
    Shape("gemma-3-4b", 2560, 10240, 8, 4, 256, has_qk_norm=True, is_gemma=True),
    Shape("smollm2-fp8", 576, 1536, 9, 3, 64, has_fp8=True),
    Shape("llama-fp8", 4096, 14336, 32, 8, 128, has_fp8=True),
    Shape("qwen3-fp8", 1024, 3072, 16, 8, 128, has_qk_norm=True, has_fp8=True),
    Shape("head-96-fp8", 3072, 8192, 32, 32, 96, has_fp8=True),
    Shape("gemma-fp8", 2560, 10240, 8, 4, 256, has_qk_norm=True, is_gemma=True, has_fp8=True),
    Shape("llama-f16-fp8", 4096, 14336, 32, 8, 128, dtype=torch.float16, has_fp8=True),
)
# Every shape where it is fastest to serve; elsewhere what takes most registers and memory.
SHAPES_OF = {
    "sm_80": ("llama-3.1-8b", "gemma-3-4b"),  # FP8 begins at 8.9
    "sm_90": tuple(shape.name for shape in SHAPES),
    "sm_100": ("llama-3.1-8b", "llama-fp8"),
}


# What a fast kernel is recognised by, and how PTX spells it.
INSTRUCTIONS = {
    "tcgen05": "tcgen05.mma",  # Blackwell's tensor cores, from memory of their own
    "wgmma": "wgmma.mma_async",  # Hopper's tensor cores, a warp group at a time
    "mma": "mma.sync",  # the tensor cores, a warp at a time
    "copy16": "cp.async.cg",  # 16 bytes from global to shared memory, behind the arithmetic
    "load16": "ld.global.v4",  # 16 bytes into registers
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one kernel."""

    gpu: str
    shape: str
    kernel: str
    num_warps: int
    registers: int
    """Per thread."""
    spilled_bytes: int
    """Per thread, in local memory."""
    shared_bytes: int
    tensor_columns: int
    programs: int
    """At a time on one multiprocessor."""
    occupancy: float
    """Share of a multiprocessor's warp slots, predicted from the above."""
    instructions: tuple[str, ...]
    """Those of INSTRUCTIONS that the kernel has."""


class Driver:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, gpu: Gpu) -> None:
        self._capability = gpu.capability
        self._target = GPUTarget("cuda", gpu.capability, WARP)

    def get_current_device(self) -> int:
        return self._capability  # of each device, triton remembers the target

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_all(gpu: Gpu, names: Collection[str], **options: int) -> list[Compiled]:
    """Every kernel for the shapes of these names."""
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    seen: list[Compiled] = []
    for shape in (shape for shape in SHAPES if shape.name in names):
        with launching_nothing(**options) as compiled:
            launch_all(shape)
        seen += [inspect_cubin(gpu, shape, kernel) for kernel in compiled]
    return seen


@contextmanager
def launching_nothing(**options: int) -> Iterator[list[CompiledKernel]]:
    """Compile what is launched, with these options besides its own, and collect it."""
    compiled: list[CompiledKernel] = []
    launch: Any = JITFunction.run

    def compile_only(function: Any, *args: Any, **kwargs: Any) -> None:
        compiled.append(launch(function, *args, **{**kwargs, **options, "warmup": True}))

    with mock.patch.object(JITFunction, "run", compile_only):
        yield compiled


def launch_all(shape: Shape, *, rows: int = 3, max_blocks: int = 256) -> None:
    """Call every launcher as the engine does: whole caches, slices of a step's inputs."""
    block_size, num_blocks = 16, 4
    num_heads = shape.num_q_heads + 2 * shape.num_kv_heads

    def floats(*sizes: int) -> torch.Tensor:
        return torch.zeros(sizes, dtype=shape.dtype)

    def ints(*sizes: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        # Odd batches leave out their first row, and with it the alignment.
        skipped = rows % 2
        return torch.zeros(sizes[0] + skipped, *sizes[1:], dtype=dtype)[skipped:]

    norm_dtype = torch.float32 if shape.is_gemma else shape.dtype
    x, weight = floats(rows, shape.hidden), torch.zeros(shape.hidden, dtype=norm_dtype)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x, weight, 1e-5)
    weight8 = torch.zeros(shape.hidden, shape.features, dtype=torch.int8)
    weight8 = weight8.to(CODES) if shape.has_fp8 else weight8
    quantized_linear(floats(rows, shape.features), weight8, torch.zeros(shape.hidden))
    gate_mul = gelu_tanh_mul if shape.is_gemma else silu_mul
    gate_mul(floats(rows, 2 * shape.features))

    head_norm = torch.zeros(shape.head_size, dtype=norm_dtype) if shape.has_qk_norm else None
    k_cache, v_cache = floats(
        2, num_blocks, block_size, shape.num_kv_heads, shape.head_size
    ).unbind()
    exponents: Exponents = None
    if shape.has_fp8:
        k_cache, v_cache = k_cache.to(CODES), v_cache.to(CODES)
        bytes_ = torch.zeros(2, num_blocks, block_size, shape.num_kv_heads, dtype=EXPONENTS)
        exponents = bytes_[0], bytes_[1]
    q = rope_and_store_kv(
        floats(rows, num_heads * shape.head_size),
        ints(rows, dtype=torch.int64),
        torch.zeros(64, shape.head_size),
        ints(rows, dtype=torch.int64),
        k_cache,
        v_cache,
        num_q_heads=shape.num_q_heads,
        num_kv_heads=shape.num_kv_heads,
        q_norm=head_norm,
        k_norm=head_norm,
        exponents=exponents,
    )
    table = ints(rows, max_blocks)
    lens, starts = ints(rows), ints(rows + 1)
    window, softcap = (1024, 50.0) if shape.is_gemma else (None, None)
    paged_decode_attention(q, k_cache, v_cache, table, lens, 0.125, window, softcap, exponents)
    paged_prefill_attention(
        q, k_cache, v_cache, table, starts, lens, 0.125, window, softcap, exponents
    )


def count_variants(shape: Shape) -> dict[str, int]:
    """How many variants of each kernel all the batches of one model compile together."""
    with launching_nothing() as compiled:
        for rows, max_blocks in ((1, 256), (2, 257), (3, 300), (16, 256), (33, 301), (64, 512)):
            launch_all(shape, rows=rows, max_blocks=max_blocks)
    return dict(Counter(name for name, _ in {(one.name, one.hash) for one in compiled}))


def inspect_cubin(gpu: Gpu, shape: Shape, kernel: CompiledKernel) -> Compiled:
    """Read registers and spills from the machine code, instructions from the assembly."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = {name: int(figure) for name, figure in re.findall(r"\b(REG|STACK):(\d+)", usage)}
    ptx, num_warps = kernel.asm["ptx"], kernel.metadata.num_warps
    tensor_columns = int(getattr(kernel.metadata, "tmem_size", 0) or 0)
    programs = programs_per_multiprocessor(
        gpu,
        num_warps=num_warps,
        registers=figures["REG"],
        shared_bytes=kernel.metadata.shared,
        tensor_columns=tensor_columns,
    )
    return Compiled(
        gpu=gpu.name,
        shape=shape.name,
        kernel=kernel.name,
        num_warps=num_warps,
        registers=figures["REG"],
        spilled_bytes=figures["STACK"],
        shared_bytes=kernel.metadata.shared,
        tensor_columns=tensor_columns,
        programs=programs,
        occupancy=occupancy(gpu, num_warps=num_warps, programs=programs),
        instructions=tuple(name for name, spelt in INSTRUCTIONS.items() if spelt in ptx),
    )


def table_of(compiled: Iterable[Compiled]) -> str:
    """One line a kernel."""
    heading = (
        f"{'gpu':6} {'shape':14} {'kernel':26} warps regs spill shared tensor programs occupied  "
        "instructions"
    )
    lines = (
        f"{one.gpu:6} {one.shape:14} {one.kernel:26} {one.num_warps:5} {one.registers:4} "
        f"{one.spilled_bytes:5} {one.shared_bytes:6} {one.tensor_columns:6} {one.programs:8} "
        f"{one.occupancy:8.1%}  {' '.join(one.instructions)}"
        for one in compiled
    )
    return "\n".join((heading, *lines))


def main() -> None:
    """Print a table, or with --json more than a table can say."""
    everything = [one for name, gpu in GPUS.items() for one in compile_all(gpu, SHAPES_OF[name])]
    if sys.argv[1:] != ["--json"]:
        sys.stdout.write(table_of(everything) + "\n")
        return
    starved = compile_all(GPUS["sm_90"], [SHAPES[0].name], maxnreg=64)
    report = {
        "compiled": everything,
        "starved": starved,
        "variants": count_variants(SHAPES[0]),
    }
    json.dump(report, sys.stdout, default=asdict)


if __name__ == "__main__":
    main()
