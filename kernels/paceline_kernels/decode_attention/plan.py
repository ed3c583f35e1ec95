"""Splits decode attention evenly: which part of which row each program computes.

The rows' contexts, one behind the other in units of `UNIT` tokens, are cut into as many equal
runs as there are programs for a KV head. A run may begin and end within a row, and hold several;
where there are fewer units than programs, some are empty.
The cut is made on the device from the lengths, so a captured CUDA graph serves every batch.
"""

import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier

UNIT = 128
"""Tokens: no tile is larger, and a shorter part would cost more to join than it is worth."""


@triton.jit
def units_of(lens_ptr, rows, is_row, WINDOW: tl.constexpr, UNIT: tl.constexpr):
    """Count the units of what each row sees; a padding row has none."""
    visible = tl.load(lens_ptr + rows, mask=is_row, other=0)
    if WINDOW > 0:
        visible = tl.minimum(visible, WINDOW)
    return tl.cdiv(visible, UNIT)


@triton.jit
def run_start(program, num_units, num_programs):
    """Give the first unit of a program's run; its end is the start of the next one's."""
    return (program.to(tl.int64) * num_units // num_programs).to(tl.int32)


@triton.jit
def program_of(unit, num_units, num_programs):
    """Find the program whose run holds a unit: the inverse of `run_start`."""
    return (((unit.to(tl.int64) + 1) * num_programs - 1) // num_units).to(tl.int32)


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["lens_ptr", "ends_ptr", "runs_ptr", "arrived_ptr"],
)
def _plan_kernel(
    lens_ptr,
    ends_ptr,  # [rows] int32: units of the rows up to this one, itself included
    runs_ptr,  # [programs, 2] int32: the first and the last row of each run
    arrived_ptr,  # [rows, NUM_KV_HEADS] int32: parts of each row that are done
    num_rows,
    num_programs,
    NUM_KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Sum the rows' units up; find the rows of PROGRAMS runs."""
    wait_for_earlier(IS_DEPENDENT)
    first = tl.program_id(0) * PROGRAMS
    row = tl.arange(0, ROWS)
    num_units = 0
    for block in range(0, num_rows, ROWS):
        units = units_of(lens_ptr, block + row, block + row < num_rows, WINDOW, UNIT)
        num_units += tl.sum(units, axis=0)

    program = first + tl.arange(0, PROGRAMS)
    begin = run_start(program, num_units, num_programs)
    last = run_start(program + 1, num_units, num_programs) - 1
    first_row = tl.zeros([PROGRAMS], dtype=tl.int32)
    last_row = tl.zeros([PROGRAMS], dtype=tl.int32)
    before = 0
    for block in range(0, num_rows, ROWS):
        is_row = block + row < num_rows
        units = units_of(lens_ptr, block + row, is_row, WINDOW, UNIT)
        ends = before + tl.cumsum(units, axis=0)
        before += tl.sum(units, axis=0)
        # A row lies before a unit if it ends there or earlier.
        first_row += tl.sum((is_row & (ends <= begin[:, None])).to(tl.int32), axis=1)
        last_row += tl.sum((is_row & (ends <= last[:, None])).to(tl.int32), axis=1)
        if first == 0:
            tl.store(ends_ptr + block + row, ends, mask=is_row)
            for head in range(NUM_KV_HEADS):
                counter = (block + row) * NUM_KV_HEADS + head
                tl.store(arrived_ptr + counter, tl.zeros([ROWS], dtype=tl.int32), mask=is_row)
    is_run = program < num_programs
    tl.store(runs_ptr + 2 * program, first_row, mask=is_run)
    tl.store(runs_ptr + 2 * program + 1, last_row, mask=is_run)
