"""Compiles every kernel for several generations of GPUs, without one: `make gpu-compile`.

The launchers themselves are called, on small CPU tensors, under a driver that names its target
and launches nothing. So what is compiled is what the engine would launch: dtypes, constants,
divisibility and number of warps included.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from paceline_kernels import tuned
from paceline_kernels.dependent import dependent
from paceline_testing import early_kernels
from paceline_testing.earlier_waits import met_before_wait_in_ptx, met_before_wait_in_sass
from paceline_testing.gpus import GPUS, WARP, GpuGeneration, occupancy, programs_per_multiprocessor
from paceline_testing.issue_slots import Round, round_of
from paceline_testing.launches import SHAPES, Launches, Shape, launch_class
from paceline_testing.schedules import Loop, loops_of
from paceline_testing.waiting_kernel import launch as launch_waiting

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
NVDISASM = CUOBJDUMP.with_name("nvdisasm")


# The four products of a layer.
QWEN = Shape("qwen2.5-0.5b", 896, 4864, 14, 2, 64)
LLAMA_1B = Shape("llama-3.2-1b", 2048, 8192, 32, 8, 64)
LLAMA_8B = Shape("llama-3.1-8b", 4096, 14336, 32, 8, 128)
DECODED_ROWS = (1, 16, 64, 128)


@dataclass(frozen=True, slots=True)
class Extent:
    """For which GPUs and shapes is compiled."""

    shapes_of: dict[str, tuple[str, ...]]
    """Of each GPU: the shapes that every kernel is compiled for."""
    dependent_shapes_of: dict[str, tuple[str, ...]]
    """The same with dependent launches."""
    decoded: tuple[Shape, ...]
    """Whose products of few rows are compiled for each GPU."""
    has_every_generation: bool
    """Each row of the table of blocks is compiled for every generation that it serves, not only
    for the newest."""


EXTENTS = {
    # What takes most registers and memory, the embedded model, and the one shape that spills.
    "some": Extent(
        shapes_of={
            "sm_80": ("llama-3.1-8b",),  # FP8 begins at 8.9
            "sm_90": ("smollm2-135m", "head-96", "gemma-fp8"),
            "sm_100": ("llama-fp8",),
        },
        dependent_shapes_of={"sm_80": ("llama-3.1-8b",), "sm_90": ("gemma-fp8",)},
        decoded=(LLAMA_8B,),
        has_every_generation=False,
    ),
    # Every shape where it is fastest to serve.
    "all": Extent(
        shapes_of={
            "sm_80": ("llama-3.1-8b", "gemma-3-4b"),
            "sm_90": tuple(shape.name for shape in SHAPES),
            "sm_100": ("llama-3.1-8b", "llama-fp8"),
        },
        dependent_shapes_of={
            "sm_80": ("llama-3.1-8b",),
            "sm_90": ("llama-3.1-8b", "gemma-3-4b"),
            "sm_100": ("llama-fp8",),
            "sm_120": ("qwen3-0.6b",),
        },
        decoded=(QWEN, LLAMA_1B, LLAMA_8B),
        has_every_generation=True,
    ),
}

# What the compiler made of them when its output was first read; nothing can print it any more.
BEFORE = {
    "_decode_kernel": "1b/0w, 80 registers, 5 on a multiprocessor",
    "_prefill_kernel": "2b/0w with the table loaded in the round, 177 registers, 96 KiB shared",
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
    loads: int
    """Written out in the kernel: of global memory, straight into registers."""
    instructions: tuple[str, ...]
    """Those of INSTRUCTIONS that the kernel has."""
    loops: tuple[Loop, ...]
    """Those that multiply."""


@dataclass(frozen=True, slots=True)
class Dependent:
    """A kernel as it is launched with the switch on."""

    compiled: Compiled
    is_launched_early: bool
    met_before_wait: tuple[str, ...]
    """What it may do too early, in PTX and in machine code."""


class Driver:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, gpu: GpuGeneration) -> None:
        self._capability = gpu.capability
        self._target = GPUTarget("cuda", gpu.capability, WARP)

    def get_current_device(self) -> int:
        return self._capability  # of each device, triton remembers the target

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_shapes(extent: Extent) -> Iterator[Compiled]:
    """Every kernel for each GPU and shape."""
    for name, shapes in extent.shapes_of.items():
        gpu = GPUS[name]
        driver: Any = Driver(gpu)
        triton.runtime.driver.set_active(driver)
        for shape in (shape for shape in SHAPES if shape.name in shapes):
            with as_on(gpu), launching_nothing() as compiled:
                Launches(shape).all()
            yield from (inspect_cubin(gpu, shape.name, kernel) for kernel in compiled)


def compile_decoded(extent: Extent) -> Iterator[Compiled]:
    """The products of decodes, of as many rows as each class has at least and at most."""
    for name in extent.shapes_of:
        driver: Any = Driver(GPUS[name])
        triton.runtime.driver.set_active(driver)
        for shape, rows in itertools.product(extent.decoded, DECODED_ROWS):
            with as_on(GPUS[name]), launching_nothing() as compiled:
                Launches(shape, rows).row_product()
            for kernel in compiled:
                yield inspect_cubin(GPUS[name], f"{shape.name}, {rows} rows", kernel)


def compile_rows(extent: Extent) -> Iterator[Compiled]:
    """What the classes of calls that demand most make of each row of the table of blocks."""
    for row in tuned.SHIPPED.rows:
        for gpu in reversed(gpus_of(row)):
            compiled = list(compile_row(row, gpu))
            yield from compiled
            if compiled and not extent.has_every_generation:
                break


def compile_row(row: tuned.Row, gpu: GpuGeneration) -> Iterator[Compiled]:
    """What they make of one row on one GPU; nothing where other rows come before it."""
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    device = tuned.Gpu(row.name or "", capability_of(gpu), gpu.multiprocessors)
    with tuned.blocks_of.as_if(tuned.SHIPPED, device):
        for shape in demanding(tuned.SHIPPED, row, device):
            with launching_nothing() as compiled:
                launch_class(row.kernel, shape)
            for kernel in compiled:
                yield inspect_cubin(gpu, repr(row), kernel)


def as_on(gpu: GpuGeneration) -> AbstractContextManager[None]:
    """Look blocks up as on a whole GPU of this generation."""
    device = tuned.Gpu("", capability_of(gpu), gpu.multiprocessors)
    return tuned.blocks_of.as_if(tuned.SHIPPED, device)


def gpus_of(row: tuned.Row) -> tuple[GpuGeneration, ...]:
    """Its own generations, or one of each; float32 is right and not fast: one tells of all."""
    if row.shape.get("bits") == 32:
        return (GPUS["sm_90"],)
    if row.gpu == tuned.ANY:
        return tuple(GPUS[name] for name in EXTENTS["all"].shapes_of)
    least = GPUS[row.gpu]
    if row.name is not None:
        return (least,)
    newer = (gpu for gpu in GPUS.values() if gpu.capability >= least.capability)
    return tuple(gpu for gpu in newer if capability_of(gpu)[0] == capability_of(least)[0])


def capability_of(gpu: GpuGeneration) -> tuple[int, int]:
    major, minor = divmod(gpu.capability, 10)
    return major, minor


def demanding(table: tuned.Table, row: tuned.Row, gpu: tuned.Gpu) -> list[tuned.Shape]:
    """Give the last class that this row serves for each way to keep KV."""
    last: dict[object, tuned.Shape] = {}
    for shape in tuned.SPACES[row.kernel].shapes():
        is_fp8 = shape.get("kv") == "fp8" or shape.get("weight", "own") != "own"
        is_wide = shape.get("bits") == 32
        if (is_fp8 and gpu.capability < (8, 9)) or (is_wide and row.shape.get("bits") != 32):
            continue
        if table.row_for(gpu, row.kernel, shape) is row:
            last[is_fp8] = shape
    return list(last.values())


@contextmanager
def launching_nothing(**options: int) -> Iterator[list[CompiledKernel]]:
    """Compile what is launched, with these options besides its own, and collect it."""
    compiled: list[CompiledKernel] = []
    launch: Any = JITFunction.run

    def compile_only(function: Any, *args: Any, **kwargs: Any) -> None:
        compiled.append(launch(function, *args, **{**kwargs, **options, "warmup": True}))

    with mock.patch.object(JITFunction, "run", compile_only):
        yield compiled


def count_variants(shape: Shape) -> dict[str, int]:
    """How many variants of each kernel all the batches of one model compile together."""
    with launching_nothing() as compiled:
        for rows, max_blocks in ((1, 256), (2, 257), (3, 300), (16, 256), (33, 301), (64, 512)):
            Launches(shape, rows, max_blocks).all()
    return dict(Counter(name for name, _ in {(one.name, one.hash) for one in compiled}))


def compile_waiting() -> list[Compiled]:
    """A loop that cannot but wait, beside which the others are held."""
    gpu = GPUS["sm_90"]
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    with launching_nothing() as compiled:
        launch_waiting()
    return [inspect_cubin(gpu, "waiting", kernel) for kernel in compiled]


def hand_over(kernel_name: str, launch: Callable[[Launches], None]) -> list[str]:
    """How a part's result reaches whoever joins it: the instructions around the one that counts."""
    gpu = GPUS["sm_90"]
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    with as_on(gpu), launching_nothing() as compiled:
        launch(Launches(LLAMA_8B))
    ptx = next(
        kernel.asm["ptx"]
        for kernel in compiled
        if kernel.name == kernel_name and "atom.global.gpu.acq_rel.add" in kernel.asm["ptx"]
    )
    before, counted, after = ptx.partition("atom.global.gpu.acq_rel.add")
    spelt = re.compile(r"st\.global|bar\.sync|ld\.global\.cg")
    stored = before.rindex("st.global")  # the part, or its log-sum-exp
    steps = [*spelt.findall(before[stored:]), counted, *spelt.findall(after)]
    return [step for step, _ in groupby(steps)]


def compile_dependent(extent: Extent) -> Iterator[Dependent]:
    """Every kernel, with the switch turned on."""
    for name, shapes in extent.dependent_shapes_of.items():
        driver: Any = Driver(GPUS[name])
        triton.runtime.driver.set_active(driver)
        for shape in (shape for shape in SHAPES if shape.name in shapes):
            with as_on(GPUS[name]), dependent.turned(on=True), launching_nothing() as compiled:
                Launches(shape).all()
            yield from (_as_dependent(GPUS[name], shape.name, kernel) for kernel in compiled)


def compile_early() -> Iterator[Dependent]:
    """Kernels that do too early what the others must not."""
    gpu = GPUS["sm_90"]
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    with launching_nothing() as compiled:
        early_kernels.launch()
    return (_as_dependent(gpu, "early", kernel) for kernel in compiled)


def _as_dependent(gpu: GpuGeneration, shape: str, kernel: CompiledKernel) -> Dependent:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(NVDISASM), "-c", file.name]
        sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Dependent(
        inspect_cubin(gpu, shape, kernel),
        bool(kernel.metadata.launch_pdl),
        (
            *(f"PTX: {each}" for each in met_before_wait_in_ptx(kernel.asm["ptx"])),
            *(f"SASS: {each}" for each in met_before_wait_in_sass(sass, kernel.name)),
        ),
    )


@dataclass(frozen=True, slots=True)
class PrefillRound:
    """A round of prefill attention's loop without a mask."""

    generation: int
    head_size: int
    flops: int
    num_warps: int
    round: Round


def prefill_rounds() -> Iterator[PrefillRound]:
    """What warps of prefill attention issue, for heads of 128 and of 64."""
    for name in EXTENTS["all"].shapes_of:
        gpu = GPUS[name]
        driver: Any = Driver(gpu)
        triton.runtime.driver.set_active(driver)
        for shape in (LLAMA_8B, LLAMA_1B):
            with as_on(gpu), launching_nothing() as compiled:
                Launches(shape).prefill_attention()
                tile = tuned.blocks_of(
                    "prefill_attention",
                    torch.device("cpu"),
                    kv="own",
                    bits=16,
                    columns=shape.head_size,
                    bounds="none",
                )
            flops = 4 * tile["rows"] * tile["tokens"] * shape.head_size
            (kernel,) = compiled
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(kernel.asm["cubin"])
                file.flush()
                command = [str(CUOBJDUMP), "-sass", file.name]
                sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            num_warps = kernel.metadata.num_warps
            generation = gpu.capability // 10
            yield PrefillRound(generation, shape.head_size, flops, num_warps, round_of(sass))


def inspect_cubin(gpu: GpuGeneration, shape: str, kernel: CompiledKernel) -> Compiled:
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
        shape=shape,
        kernel=kernel.name,
        num_warps=num_warps,
        registers=figures["REG"],
        spilled_bytes=figures["STACK"],
        shared_bytes=kernel.metadata.shared,
        tensor_columns=tensor_columns,
        programs=programs,
        occupancy=occupancy(gpu, num_warps=num_warps, programs=programs),
        loads=ptx.count("ld.global"),
        instructions=tuple(name for name, spelt in INSTRUCTIONS.items() if spelt in ptx),
        loops=loops_of(kernel.asm["ttgir"]),
    )


def table_of(compiled: Iterable[Compiled]) -> str:
    """One line a kernel."""
    heading = (
        f"{'gpu':6} {'shape':14} {'kernel':26} warps regs spill shared tensor programs occupied  "
        "loops  instructions"
    )
    lines = (
        f"{one.gpu:6} {one.shape:14} {one.kernel:26} {one.num_warps:5} {one.registers:4} "
        f"{one.spilled_bytes:5} {one.shared_bytes:6} {one.tensor_columns:6} {one.programs:8} "
        f"{one.occupancy:8.1%}  {' '.join(map(_schedule, one.loops)):16} "
        f"{' '.join(one.instructions)}"
        for one in compiled
    )
    legend = (
        "loops: those that multiply; b buffers of each tile, and w copies that may be on their way "
        "where the loop waits for one"
    )
    return "\n".join((heading, *lines, legend))


def before_and_after(compiled: Collection[Compiled]) -> str:
    """Set what was compiled when loops were first read beside what is compiled now."""
    lines = ["before and after, Llama-3.1-8B on 9.0 (before: decision 75)"]
    for name, before in BEFORE.items():
        now = next(
            one
            for one in compiled
            if (one.gpu, one.shape, one.kernel) == ("sm_90", "llama-3.1-8b", name)
        )
        loops = " ".join(map(_schedule, now.loops))
        after = f"{loops}, {now.registers} registers, {now.shared_bytes >> 10} KiB shared"
        lines.append(f"  {name:16} {before} -> {after}, {now.programs} on a multiprocessor")
    return "\n".join(lines)


def _schedule(loop: Loop) -> str:
    """Buffers of a tile, and how many copies may be on their way where the loop waits."""
    return f"{loop.buffers}b/{','.join(map(str, loop.waits)) or '-'}w" + "!" * loop.tile_loads


def compile_starved() -> list[Compiled]:
    """Attention that must do with 96 registers a thread."""
    gpu = GPUS["sm_90"]
    driver: Any = Driver(gpu)
    triton.runtime.driver.set_active(driver)
    with as_on(gpu), launching_nothing(maxnreg=96) as compiled:
        Launches(SHAPES[0]).prefill_attention()
    return [inspect_cubin(gpu, SHAPES[0].name, kernel) for kernel in compiled]


def report_of(extent: Extent) -> dict[str, Any]:
    """Give all that the tests ask for."""
    return {
        "compiled": list(compile_shapes(extent)),
        "starved": compile_starved(),
        "variants": count_variants(SHAPES[0]),
        "rows": list(compile_rows(extent)),
        "waiting": compile_waiting(),
        "dependent": list(compile_dependent(extent)),
        "early": list(compile_early()),
        "decoded": list(compile_decoded(extent)),
        "handing_over": {
            "decode_attention": hand_over("_decode_kernel", Launches.decode_attention),
            "row_product": hand_over("_row_product_kernel", Launches.row_product),
        },
    }


def main() -> None:
    """Print a table; with --json EXTENT what the tests ask for; with --rounds attention's loops."""
    match sys.argv[1:]:
        case ["--rounds"]:
            json.dump(list(prefill_rounds()), sys.stdout, default=asdict)
        case ["--json", name]:
            json.dump(report_of(EXTENTS[name]), sys.stdout, default=asdict)
        case _:
            everything = list(compile_shapes(EXTENTS["all"]))
            sys.stdout.write(f"{table_of(everything)}\n\n{before_and_after(everything)}\n")


if __name__ == "__main__":
    main()
