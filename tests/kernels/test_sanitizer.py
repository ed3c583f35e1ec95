"""The sanitizer finds each kind of fault in a kernel that has just that one."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_testing import faulty_kernels
from paceline_testing.sanitizer import KernelFaultError, sanitized, sparse

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="looks into Triton's interpreter"
)
kernels: Any = faulty_kernels  # a launch takes whatever Triton makes a constexpr of
Launch = Callable[[], Any]


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Leave fresh memory as it is: the sanitizer knows which was never written."""


def _numbers(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32)


def _past_the_end() -> None:
    kernels.copy[(2,)](_numbers(7), torch.zeros(8), 8, BLOCK=4)


def _before_the_first() -> None:
    kernels.copy_backwards[(2,)](_numbers(8), torch.zeros(8), 8, BLOCK=4)


def _written_past_the_end() -> None:
    kernels.copy[(2,)](_numbers(8), torch.zeros(7), 8, BLOCK=4)


def _in_a_neighbour() -> None:
    """Of one buffer: an allocator's bounds do not show it."""
    first, second = torch.zeros(16).split(8)
    kernels.copy[(2,)](first[:7], second, 8, BLOCK=4)


def _between_rows() -> None:
    kernels.copy[(1,)](torch.zeros(4, 4)[:, :2], torch.zeros(8), 8, BLOCK=8)


def _two_write() -> None:
    kernels.sum_into[(2,)](_numbers(8), torch.zeros(1), BLOCK=4)


def _one_reads_what_another_writes() -> None:
    kernels.shift[(2,)](_numbers(9), BLOCK=4)


def _lanes_write_one_address() -> None:
    ids = torch.tensor([0, 3, 3, 1])
    kernels.scatter[(1,)](ids, torch.zeros(4, dtype=torch.int32), BLOCK=4)


def _no_barrier() -> None:
    work = torch.empty(4)
    kernels.reverse_by_memory[(1,)](_numbers(4), work, torch.empty(4), BLOCK=4, WAITS=False)


def _sum_by_the_last(out: Tensor, *, waits: bool) -> None:
    arrived = torch.zeros(1, dtype=torch.int32)
    kernels.sum_by_the_last[(4,)](_numbers(16), torch.empty(16), arrived, out, NUM=4, WAITS=waits)


def _one_says_that_others_are_done() -> None:
    """A thread tells of stores that the program's other threads may not have done."""
    _sum_by_the_last(torch.empty(1), waits=False)


def _offsets_wrap() -> None:
    x = sparse(3, 1 << 30, dtype=torch.uint8)
    kernels.copy_row[(3,)](
        x, torch.empty(12, dtype=torch.uint8), x.stride(0), IS_WIDE=False, BLOCK=4
    )


def _never_written() -> None:
    kernels.copy[(2,)](torch.empty(8), torch.empty(8), 8, BLOCK=4)


@pytest.mark.parametrize(
    ("kind", "faulty"),
    [
        ("bounds", _past_the_end),
        ("bounds", _before_the_first),
        ("bounds", _written_past_the_end),
        ("bounds", _in_a_neighbour),
        ("bounds", _between_rows),
        ("race", _two_write),
        ("race", _one_reads_what_another_writes),
        ("race", _lanes_write_one_address),
        ("race", _no_barrier),
        ("race", _one_says_that_others_are_done),
        ("overflow", _offsets_wrap),
        ("unwritten", _never_written),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__.strip("_"),
)
def test_a_fault_is_found(kind: str, faulty: Launch) -> None:
    """And the message says which kernel, program, tensor and line."""
    with (
        sanitized(),
        pytest.raises(KernelFaultError, match=r"program \(.*_ptr \[.*line \d+") as found,
    ):
        faulty()

    assert found.value.kind == kind


def test_what_a_launch_leaves_out_of_its_result_is_found() -> None:
    """Whatever its type: poison shows only in floats."""
    out = torch.zeros(0)
    with sanitized() as sanitizer:
        out = torch.empty(8, dtype=torch.int32)
        kernels.copy[(1,)](torch.zeros(8, dtype=torch.int32), out, 7, BLOCK=8)

        with pytest.raises(KernelFaultError, match="not all written"):
            sanitizer.require_written(out)
        out[7:].fill_(1)
        sanitizer.require_written(out)


def test_lanes_that_a_mask_leaves_out_are_garbage() -> None:
    """On a GPU they hold what the register held; the interpreter alone makes them 0."""
    out = torch.zeros(1)
    with sanitized():
        kernels.lanes_left_out[(1,)](_numbers(3), out, 3, BLOCK=4)

    assert out.isnan().all()


def test_what_is_right_passes() -> None:
    """Ragged ends, atomics, barriers, wide offsets, and a second launch that reads the first's."""
    with sanitized() as sanitizer:
        out, total = torch.empty(7), torch.zeros(1)
        kernels.copy[(2,)](_numbers(7), out, 7, BLOCK=4)
        kernels.copy[(2,)](out, out.clone(), 7, BLOCK=4)
        kernels.add_into[(2,)](_numbers(8), total, BLOCK=4)
        backwards = torch.empty(4)
        kernels.reverse_by_memory[(1,)](_numbers(4), torch.empty(4), backwards, BLOCK=4, WAITS=True)
        kernels.scatter[(1,)](
            torch.tensor([2, 0, 1, 3]), torch.empty(4, dtype=torch.int32), BLOCK=4
        )
        by_the_last = torch.empty(1)
        _sum_by_the_last(by_the_last, waits=True)
        x = sparse(3, 1 << 30, dtype=torch.uint8)
        rows = torch.empty(12, dtype=torch.uint8)
        kernels.copy_row[(3,)](x, rows, x.stride(0), IS_WIDE=True, BLOCK=4)
        sanitizer.require_written(out, backwards, rows)

    assert sanitizer.num_launches == 7
    assert by_the_last.item() == sum(range(16))
    assert out.tolist() == _numbers(7).tolist()
    assert total.item() == 28
    assert backwards.tolist() == [3, 2, 1, 0]


def test_programs_at_the_corners_see_the_whole_grid() -> None:
    """Of a tensor of 2^31 elements no more can be touched in a test."""
    x = sparse(1 << 16, 1 << 15, dtype=torch.uint8)
    out = torch.zeros(4 << 16, dtype=torch.uint8)
    x[-1, 1] = 7

    with sanitized(corners=True):
        kernels.copy_row[(1 << 16,)](x, out, x.stride(0), IS_WIDE=True, BLOCK=4)
        with pytest.raises(KernelFaultError) as found:
            kernels.copy_row[(1 << 16,)](x[1:], out, 1 << 15, IS_WIDE=True, BLOCK=4)

    assert out[-4:].tolist() == [0, 7, 0, 0]
    assert found.value.kind == "bounds"
