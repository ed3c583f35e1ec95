"""Block sizes measured on this GPU: rows for `kernels/paceline_kernels/tuned/rows.py`.

A candidate counts where it compiles, spills no register and agrees with float64. What is measured
serves nobody until its row is committed: production looks up, and never searches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import torch
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from gpu_suite.candidates import Question, questions
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.record import Figure, Found
from kernel_speed import error_limit, relative_error, tensors_of
from paceline_kernels import tuned
from paceline_kernels.tuned import Blocks, Gpu, Row, Table

WORTH_A_ROW = 0.98
"""Share of the time of the blocks in the table: a smaller gain is noise."""
_DRY_GPU = Gpu("dry run", (9, 0))
_DRY_CANDIDATES = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate that counts."""

    blocks: Blocks
    seconds: float


def measure(machine: Machine) -> Iterator[Found]:
    """Answer every question; a figure has a row where something is better than what stands."""
    gpu = _DRY_GPU if machine.is_dry else tuned.gpu_of(torch.device("cuda", 0))
    for question in questions(machine, has_fp8=machine.has_fp8):
        if (name := name_of(question)) in machine.passed:
            continue
        machine.tidy()
        yield from tried(name, partial(_answered, question, gpu, machine), machine)


def _answered(question: Question, gpu: Gpu, machine: Machine) -> Iterator[Found]:
    yield answer(question, gpu, machine)


def name_of(question: Question) -> str:
    """Name its figure."""
    return f"blocks of {question.name}"


def answer(question: Question, gpu: Gpu, machine: Machine) -> Figure:
    """Time the candidates for one class of calls."""
    standing = tuned.SHIPPED.row_for(gpu, question.kernel, question.shape).blocks
    case = question.make()
    wanted = tensors_of(case.reference())
    limit = error_limit(case, machine.dtype)

    def is_right() -> bool:
        errors = map(relative_error, tensors_of(case.run()), wanted)
        return all(error <= limit for error in errors)

    timed: list[Timed] = []
    tried = 0
    for blocks in islice(
        question.candidates(standing), _DRY_CANDIDATES if machine.is_dry else None
    ):
        tried += 1
        row = row_of(question, gpu, blocks, "being measured")
        with tuned.blocks_of.as_if(Table((row, *tuned.SHIPPED.rows)), gpu):
            if counts(is_right):
                timed.append(Timed(blocks, machine.seconds_of(case.run)))
    return figure_of(question, gpu, standing, timed, tried=tried, versions=machine.described())


def counts(is_right: Callable[[], bool]) -> bool:
    """Whether what runs compiles, fits, spills nothing and is right."""
    launched: list[Any] = []
    launch: Any = JITFunction.run

    def remember(function: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(launch(function, *args, **kwargs))
        return launched[-1]

    try:
        with mock.patch.object(JITFunction, "run", remember):
            agrees = is_right()
    except (OutOfResources, PTXASError):
        return False
    return agrees and not any(getattr(kernel, "n_spills", 0) for kernel in launched)


def figure_of(
    question: Question,
    gpu: Gpu,
    standing: Blocks,
    timed: Sequence[Timed],
    *,
    tried: int,
    versions: dict[str, str],
) -> Figure:
    """Say what is best, beside what stands. Raises RuntimeError where nothing counts."""
    if not timed:
        raise RuntimeError(f"{question.name}: none of {tried} candidates is right without a spill")
    best = min(timed, key=lambda one: one.seconds)
    before = next((one for one in timed if one.blocks == standing), None)
    was = "what stands does not count" if before is None else f"was {before.seconds * 1e6:.1f} us"
    because = (
        f"measured: {best.seconds * 1e6:.1f} us, {was}; {len(timed)} of {tried} candidates; "
        f"torch {versions['torch']}, triton {versions['triton']}"
    )
    is_better = before is None or best.seconds < WORTH_A_ROW * before.seconds
    row = f"{row_of(question, gpu, best.blocks, because)!r}," if is_better else ""
    blocks = ", ".join(f"{name} {value}" for name, value in best.blocks.items())
    found = blocks if is_better else "what stands stays"
    return Figure(
        name_of(question),
        best.seconds * 1e6,
        "us",
        f"{found}; {was}; {len(timed)} of {tried} candidates",
        row,
    )


def row_of(question: Question, gpu: Gpu, blocks: Blocks, because: str) -> Row:
    """Make the table's row for this device."""
    major, minor = gpu.capability
    return Row(
        kernel=question.kernel,
        gpu=f"sm_{major}{minor}",
        name=gpu.name,
        shape=dict(question.shape),
        blocks=dict(blocks),
        because=because,
    )
