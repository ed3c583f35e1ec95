"""Decode attention in Triton, in one launch, and its launchers.

As many programs as the device holds at a time, each with the same number of tokens to read
(`plan.py`). A row that one program reads whole is done there; of one that several read, each
leaves its part's result and log-sum-exp in base 2, and the last to arrive joins them.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, MAX_GROUP, Exponents, expect, expect_caches
from paceline_kernels.decode_attention.plan import UNIT, _plan_kernel, program_of, run_start
from paceline_kernels.decode_attention.reference import DecodePlan
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.paged_kv.kernel import attend, nothing_seen
from paceline_kernels.prepared import Call, Calls, looks
from paceline_kernels.tuned import blocks_of
from paceline_kernels.tuned.spaces import Blocks

_CALLS = Calls()
_JOINED = 4096
"""Numbers of parts that are joined at a time: 32 a thread."""
_REGISTERS = 65_536
"""Registers of a multiprocessor, from compute capability 8.0 on."""
_MOST_REGISTERS = 255
"""Registers of a thread, at most."""
_PLANNED = 64
"""Runs that one program of the plan kernel computes."""


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(
    do_not_specialize=["num_rows", "num_programs", "num_multiprocessors", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "ends_ptr", "runs_ptr", "arrived_ptr"],
)
def _decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_exponents_ptr,  # None: no FP8
    v_exponents_ptr,
    table_ptr,
    lens_ptr,
    ends_ptr,  # these three: see `_plan_kernel`
    runs_ptr,
    arrived_ptr,
    partial_ptr,  # [programs, 2, NUM_KV_HEADS, GROUP, HEAD_SIZE] float32
    lse_ptr,  # [programs, 2, NUM_KV_HEADS, GROUP] float32, base 2
    out_ptr,
    num_rows,
    num_programs,  # of each KV head
    num_multiprocessors,
    scale_log2,
    block_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    MEMBERS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Attend over one run of units, for the heads of a group."""
    wait_for_earlier(IS_DEPENDENT)
    # Programs are assigned to SMs round-robin. Those of one SM get neighbouring runs, so that each
    # SM has an equal share in total, whatever the rounding of single runs.
    each = tl.num_programs(0) // num_multiprocessors
    place = tl.program_id(0) % num_multiprocessors * each + tl.program_id(0) // num_multiprocessors
    kv_head = place // num_programs
    program = place % num_programs
    if kv_head >= NUM_KV_HEADS:
        return
    member = tl.arange(0, TILE_Q)
    columns = tl.arange(0, COLUMNS)
    inside = (member < GROUP)[:, None] & (columns < HEAD_SIZE)[None, :]
    at = (kv_head * GROUP + member)[:, None] * HEAD_SIZE + columns[None, :]

    # A padding row is in no run.
    for padding in range(program, num_rows, num_programs):
        if tl.load(lens_ptr + padding) == 0:
            here = _wide(padding) * (NUM_KV_HEADS * GROUP * HEAD_SIZE) + at
            nothing = tl.zeros([TILE_Q, COLUMNS], dtype=out_ptr.dtype.element_ty)
            tl.store(out_ptr + here, nothing, mask=inside)

    num_units = tl.load(ends_ptr + num_rows - 1)
    begin = run_start(program, num_units, num_programs)
    end = run_start(program + 1, num_units, num_programs)
    if begin >= end:
        return
    first_row = tl.load(runs_ptr + 2 * program)
    last_row = tl.load(runs_ptr + 2 * program + 1)
    for row in range(first_row, last_row + 1):
        row_end = tl.load(ends_ptr + row)
        length = tl.load(lens_ptr + row)
        visible = length
        if WINDOW > 0:
            visible = tl.minimum(length, WINDOW)
        row_begin = row_end - tl.cdiv(visible, UNIT)
        part_begin, part_end = tl.maximum(begin, row_begin), tl.minimum(end, row_end)
        if part_begin < part_end:
            unseen = length - visible
            stop = tl.minimum(unseen + (part_end - row_begin) * UNIT, length)
            here = _wide(row) * (NUM_KV_HEADS * GROUP * HEAD_SIZE) + at
            is_whole = part_end - part_begin == row_end - row_begin
            part = tl.where(is_whole, -1, program * 2 + (part_begin == row_begin).to(tl.int32))
            q = tl.load(q_ptr + here, mask=inside, other=0.0)
            out, peak, total = nothing_seen(TILE_Q, COLUMNS)
            out, peak, total = attend(
                out,
                peak,
                total,
                q,
                tl.full([TILE_Q], stop - 1, dtype=tl.int32),
                k_cache_ptr,
                v_cache_ptr,
                k_exponents_ptr,
                v_exponents_ptr,
                table_ptr + _wide(row) * table_stride,
                unseen + (part_begin - row_begin) * UNIT,
                stop,
                block_stride,
                kv_head,
                scale_log2,
                NUM_KV_HEADS,
                HEAD_SIZE,
                BLOCK_SIZE,
                TILE_KV,
                COLUMNS,
                0,  # every token of the part is within the window
                SOFTCAP,
                IS_WHOLE=False,
            )
            out /= total[:, None]
            if part < 0:
                tl.store(out_ptr + here, out.to(out_ptr.dtype.element_ty), mask=inside)
            else:
                _leave_part(
                    out,
                    peak + tl.log2(total),
                    part,
                    partial_ptr,
                    lse_ptr,
                    kv_head,
                    NUM_KV_HEADS,
                    GROUP,
                    HEAD_SIZE,
                    TILE_Q,
                    COLUMNS,
                )

    # Joined after all rows, not between two: what the join computes would otherwise lie in
    # registers while tiles are multiplied.
    _join_rows(
        first_row,
        last_row,
        begin,
        end,
        num_units,
        num_programs,
        lens_ptr,
        ends_ptr,
        arrived_ptr,
        partial_ptr,
        lse_ptr,
        out_ptr,
        kv_head,
        NUM_KV_HEADS,
        GROUP,
        HEAD_SIZE,
        COLUMNS,
        MEMBERS,
        PARTS,
        WINDOW,
        UNIT,
    )


@triton.jit
def _join_rows(
    first_row,
    last_row,
    begin,
    end,
    num_units,
    num_programs,
    lens_ptr,
    ends_ptr,
    arrived_ptr,
    partial_ptr,
    lse_ptr,
    out_ptr,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    MEMBERS: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Join the rows of a run of which its part was the last to arrive.

    Only its first and its last row can be parts.
    """
    for row in range(first_row, last_row + 1, tl.maximum(last_row - first_row, 1)):
        row_end = tl.load(ends_ptr + row)
        visible = tl.load(lens_ptr + row)
        if WINDOW > 0:
            visible = tl.minimum(visible, WINDOW)
        row_begin = row_end - tl.cdiv(visible, UNIT)
        if (row_begin < begin) | (row_end > end):
            first = program_of(row_begin, num_units, num_programs)
            last = program_of(row_end - 1, num_units, num_programs)
            # With fewer units than programs, each unit has its own program; the others have none.
            num_parts = tl.minimum(last - first + 1, row_end - row_begin)
            counter = arrived_ptr + row * NUM_KV_HEADS + kv_head
            # All threads have stored before one of them says so.
            tl.debug_barrier()
            if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
                tl.store(counter, 0)  # for the next layer
                _join_parts(
                    first,
                    last,
                    num_units,
                    num_programs,
                    partial_ptr,
                    lse_ptr,
                    out_ptr + _wide(row) * (NUM_KV_HEADS * GROUP * HEAD_SIZE),
                    kv_head,
                    NUM_KV_HEADS,
                    GROUP,
                    HEAD_SIZE,
                    COLUMNS,
                    MEMBERS,
                    PARTS,
                )


@triton.jit
def _wide(row):
    """Convert a loop variable to int64; in Triton's interpreter it is a Python int."""
    return tl.full([], 0, dtype=tl.int64) + row


@triton.jit
def _leave_part(
    out,  # [TILE_Q, COLUMNS] float32
    lse,  # [TILE_Q] float32
    part,
    partial_ptr,
    lse_ptr,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    TILE_Q: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store what a part gives. A run has at most two: the end of a row, the beginning of one."""
    member = tl.arange(0, TILE_Q)
    columns = tl.arange(0, COLUMNS)
    at = (part * NUM_KV_HEADS + kv_head) * GROUP + member
    inside = (member < GROUP)[:, None] & (columns < HEAD_SIZE)[None, :]
    tl.store(partial_ptr + at[:, None] * HEAD_SIZE + columns[None, :], out, mask=inside)
    tl.store(lse_ptr + at, lse, mask=member < GROUP)


@triton.jit
def _join_parts(
    first,
    last,
    num_units,
    num_programs,
    partial_ptr,
    lse_ptr,
    out_ptr,  # of this row
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    MEMBERS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Join a row's parts: out = sum(2 ** lse * partial) / sum(2 ** lse).

    They are read past the first cache, which does not see what other programs store.
    """
    part = tl.arange(0, PARTS)
    member = tl.arange(0, MEMBERS)
    columns = tl.arange(0, COLUMNS)
    in_head = columns < HEAD_SIZE
    is_member = member < GROUP
    out = tl.zeros([MEMBERS, COLUMNS], dtype=tl.float32)
    peak = tl.full([MEMBERS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([MEMBERS], dtype=tl.float32)
    for tile in range(first, last + 1, PARTS):
        program = tile + part
        begin = run_start(program, num_units, num_programs)
        is_part = (program <= last) & (begin < run_start(program + 1, num_units, num_programs))
        is_live = is_part[:, None] & is_member[None, :]
        # Only the first program's run has the row's beginning.
        left = program * 2 + (program == first).to(tl.int32)
        at = (left[:, None] * NUM_KV_HEADS + kv_head) * GROUP + member[None, :]
        lse = tl.load(lse_ptr + at, mask=is_live, other=float("-inf"), cache_modifier=".cg")
        partial = tl.load(
            partial_ptr + at[:, :, None] * HEAD_SIZE + columns[None, None, :],
            mask=is_live[:, :, None] & in_head[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        new_peak = tl.maximum(peak, tl.max(lse, axis=0))
        new_peak = tl.maximum(new_peak, -1e30)  # rows beyond the group: no -inf - -inf
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(lse - new_peak[None, :])
        total = total * shrink + tl.sum(weights, axis=0)
        out = out * shrink[:, None] + tl.sum(weights[:, :, None] * partial, axis=0)
        peak = new_peak
    at = (kv_head * GROUP + member)[:, None] * HEAD_SIZE + columns[None, :]
    inside = is_member[:, None] & in_head[None, :]
    out = out / tl.maximum(total, 1e-30)[:, None]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def paged_decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    exponents: Exponents = None,
    *,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Launch as many programs as the device holds, for each KV head the same number."""
    if plan is None:
        expect_caches(k_cache, v_cache, exponents, like=q)
        plan = _planned(q, k_cache, context_lens, window)
    num_programs = len(plan.runs)
    caches = (k_cache, v_cache, *(exponents or (None, None)))
    tables = (block_table, context_lens)
    key = _CALLS.key(num_programs, window, softcap, *map(looks, (q, *caches, *tables, out)))
    call = _CALLS.get(key)
    if call is None:
        call = _checked(
            q,
            k_cache,
            v_cache,
            block_table,
            context_lens,
            num_programs,
            window,
            softcap,
            exponents,
            out,
        )
        _CALLS.keep(key, call)
    out = torch.empty_like(q) if out is None else out
    num_kv_heads, head_size = k_cache.shape[2:]
    parts = (num_programs, 2, num_kv_heads, q.shape[1] // num_kv_heads)
    partial = torch.empty((*parts, head_size), dtype=torch.float32, device=q.device)
    lse = torch.empty(parts, dtype=torch.float32, device=q.device)
    call(
        (q, *caches, *tables, *plan, partial, lse, out),
        len(q),
        num_programs,
        blocks_of.multiprocessors(q.device),
        scale * math.log2(math.e),
        k_cache.stride(0),
        block_table.stride(0),
    )
    return out


def _checked(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    num_programs: int,
    window: int | None,
    softcap: float | None,
    exponents: Exponents,
    out: Tensor | None,
) -> Call:
    expect_caches(k_cache, v_cache, exponents, like=q)
    _, block_size, num_kv_heads, head_size = k_cache.shape
    expect("q", q, shape=("rows", "num_q_heads", head_size), dtypes=FLOATS, like=q)
    rows, num_q_heads, _ = q.shape
    expect("block_table", block_table, shape=(rows, "blocks"), dtypes=(torch.int32,), like=q)
    expect("context_lens", context_lens, shape=(rows,), dtypes=(torch.int32,), like=q)
    group, rest = divmod(num_q_heads, num_kv_heads)
    if rest or not 1 <= group <= MAX_GROUP:
        raise ValueError(
            f"num_q_heads must be 1 to {MAX_GROUP} times num_kv_heads={num_kv_heads}, "
            f"got {num_q_heads}"
        )
    if out is not None:
        expect("out", out, shape=q.shape, dtypes=(q.dtype,), like=q)

    columns = _columns(head_size)
    blocks = _blocks(q, k_cache)
    num_multiprocessors = blocks_of.multiprocessors(q.device)
    members = triton.next_power_of_2(group)
    each = triton.cdiv(num_programs * num_kv_heads, num_multiprocessors)
    return Call(
        _decode_kernel,
        (num_multiprocessors * each,),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        UNIT=UNIT,
        TILE_Q=16,
        TILE_KV=blocks["tokens"],
        COLUMNS=columns,
        MEMBERS=members,
        PARTS=max(1, _JOINED // (members * columns)),
        WINDOW=window or 0,
        SOFTCAP=softcap or 0.0,
        **dependent(q.device),
        num_warps=blocks["num_warps"],
        num_stages=blocks["num_stages"],
        maxnreg=_registers(blocks),
        enable_fp_fusion=True,
    )


def plan_decode_attention(
    q: Tensor, k_cache: Tensor, context_lens: Tensor, window: int | None = None
) -> DecodePlan | None:
    """Launch the plan kernel, with one program for every `_PLANNED` runs."""
    return _planned(q, k_cache, context_lens, window)


def _planned(q: Tensor, k_cache: Tensor, context_lens: Tensor, window: int | None) -> DecodePlan:
    rows, num_kv_heads = len(context_lens), k_cache.shape[2]
    expect("context_lens", context_lens, shape=("rows",), dtypes=(torch.int32,), like=q)
    wanted = blocks_of.multiprocessors(q.device) * _blocks(q, k_cache)["programs"]
    num_programs = max(1, wanted // num_kv_heads)

    def ints(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.int32, device=q.device)

    plan = DecodePlan(ints(rows), ints(num_programs, 2), ints(rows, num_kv_heads))
    _plan_kernel[(triton.cdiv(num_programs, _PLANNED),)](
        context_lens,
        *plan,
        rows,
        num_programs,
        NUM_KV_HEADS=num_kv_heads,
        WINDOW=window or 0,
        UNIT=UNIT,
        ROWS=64,
        PROGRAMS=_PLANNED,
        **dependent(context_lens.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return plan


def _registers(blocks: Blocks) -> int:
    """Return the registers per thread that let the intended programs share a multiprocessor."""
    threads = 32 * blocks["num_warps"] * blocks["programs"]
    return min(_MOST_REGISTERS, _REGISTERS // threads // 8 * 8)


def _columns(head_size: int) -> int:
    columns: int = triton.next_power_of_2(head_size)
    return max(16, columns)  # 16: the least that a dot takes


def _blocks(q: Tensor, k_cache: Tensor) -> Blocks:
    return blocks_of(
        "decode_attention",
        q.device,
        kv="own" if k_cache.dtype == q.dtype else "fp8",
        bits=8 * q.element_size(),
        columns=_columns(k_cache.shape[3]),
    )
