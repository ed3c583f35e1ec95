"""One step of the simulated engine: begin, share, run, settle. Compiled."""

import math

from paceline_engine.pacing.lane_pace import step_allowance_ms
from paceline_engine.pacing.prompts_ahead import shared_attention
from paceline_sim.compiled import compiled
from paceline_sim.holding import arrive, end, extend_decodes, measure, shed
from paceline_sim.sharing import share
from paceline_sim.state import (
    DECODE,
    FIRST_BIN,
    GAMMA,
    MOST_SLICES,
    NUM_BINS,
    OK,
    PREFILL,
    SLICE_S,
    EngineArrays,
    Real,
)
from paceline_wire.step_cost import chunk_attention

READY, REACHED, FULL, STUCK = range(4)
_chunk_attention = compiled(chunk_attention)
_shared_attention = compiled(shared_attention)
_LOG_GAMMA = math.log(GAMMA)
_allowance_ms = compiled(step_allowance_ms)
_HOST_MS = 0.1
"""What telemetry says that the host took; it is part of the step's time, no cost beside it."""


@compiled
def begin(e: EngineArrays, until: float) -> int:
    """Go to the next step's start; READY for it, REACHED `until`, or FULL records."""
    totals = e.totals[0]
    while totals.now < until:
        needed = min((totals.now + 600.0) / SLICE_S, MOST_SLICES - 1)
        if totals.steps == len(e.steps) or needed >= len(e.gaps):
            return FULL
        arrive(e)
        shed(e)
        extend_decodes(e)
        measure(e)
        if totals.running > 0 or totals.wanted > 0:
            return READY
        totals.now = until
        if totals.arrived < len(e.jobs):
            totals.now = min(until, e.jobs[totals.arrived].arrival_s)
    arrive(e)  # who came during the last step waits already
    return REACHED


@compiled
def step_ms(  # noqa: PLR0917 - compiled code takes no keywords
    dense_ms: Real,
    costs: Real,
    decode: int,
    prefill: int,
    context: int,
    attention: int,
    sequences: int,
) -> float:
    """Milliseconds of a step without noise (the formula of `hardware`)."""
    context_ms, few, rows, long, scale, pair_ms, tile, row_ms, mixed_ms, grid = costs
    tokens = decode + prefill
    if prefill == 0:
        tokens = int(math.ceil(decode / grid) * grid)
    ms = dense_ms[min(tokens, len(dense_ms) - 1)] + row_ms * sequences
    if context > 0:
        bent = (1 + few / (1 + decode / rows)) * (1 + long * context / (context + scale))
        ms += context * context_ms * bent
    if prefill > 0:
        ms += mixed_ms + attention * pair_ms * math.ceil(prefill / tile) * tile / prefill
    return float(ms)


@compiled
def _disturbed(e: EngineArrays) -> float:
    """By how much everything takes longer now."""
    now, factor = e.totals[0].now, 1.0
    for k in range(len(e.disturbances)):
        start, end, full, ramp = e.disturbances[k]
        if start <= now < end:
            part = min((now - start) / ramp, (end - now) / ramp, 1.0) if ramp > 0 else 1.0
            factor *= 1 + (full - 1) * part
    return factor


@compiled
def _settle(e: EngineArrays) -> None:
    """Give tokens to the decodes and to the prompts that are done; let go of who has all."""
    totals = e.totals[0]
    row = min(int(totals.now / SLICE_S), len(e.gaps) - 1)
    last_gap, column, kept = -1.0, 0, 0
    for k in range(totals.running):
        i = e.running[k]
        job = e.jobs[i]
        count = 1 if job.state == DECODE else job.grant
        job.computed += count
        job.grant = 0
        if count > 0 and job.computed == job.prompt + job.tokens:
            if job.tokens == 0:
                job.first_s = totals.now
            else:
                gap = (totals.now - job.last_s) * 1e3
                if gap != last_gap:
                    place = math.ceil(math.log(gap) / _LOG_GAMMA) - FIRST_BIN
                    last_gap, column = gap, min(max(int(place), 0), NUM_BINS - 1)
                e.gaps[row, column] += 1
                job.itl_max_ms = max(job.itl_max_ms, gap)
            job.state, job.last_s = DECODE, totals.now
            job.tokens += 1
            totals.output_tokens += 1
        if job.tokens >= job.output:
            end(e, i, OK, totals.now)
        else:
            e.running[kept] = i
            kept += 1
    totals.running = kept


@compiled
def execute(e: EngineArrays, allowed: int) -> int:
    """Run the step that `begin` made ready, of at most about `allowed` tokens; READY or STUCK."""
    totals = e.totals[0]
    decode = totals.decode
    total = max(allowed, decode + (1 if totals.wanted > 0 else 0))
    total = max(min(total, totals.token_budget), decode)
    share(e, total - decode)
    decode = totals.decode  # who was displaced does not run
    prefill = attention = 0
    for k in range(totals.granted):
        job = e.jobs[e.granted[k]]
        prefill += job.grant
        attention += int(_chunk_attention(job.grant, job.computed))
    if decode + prefill == 0:
        return STUCK
    number = totals.steps
    wall_ms = e.noise[number] * _disturbed(e)
    wall_ms *= step_ms(
        e.dense_ms, e.costs, decode, prefill, totals.context, attention, decode + totals.granted
    )
    step = e.steps[number]
    totals.now += wall_ms / 1e3
    step.seq, step.at, step.wall_ms = number + 1, totals.now, wall_ms
    step.decode, step.prefill = decode, prefill
    step.context, step.attention = totals.context, attention
    step.epoch, step.token_budget, step.paced_tokens = totals.epoch, totals.token_budget, total
    step.preemptions, step.clean = totals.preempted, totals.preempted == 0
    step.host_ms = _HOST_MS
    totals.preempted = 0
    totals.prompt_tokens += prefill
    totals.steps += 1
    _settle(e)
    _take_stock(e)
    return READY


@compiled
def settled_total(e: EngineArrays) -> int:
    """Find the most tokens of the next step whose time, times q_r, is within what it may take."""
    totals = e.totals[0]
    decode, budget = totals.decode, max(totals.token_budget, totals.decode)
    target_ms = totals.target_ms
    if totals.pace_s > 0 and (math.isnan(target_ms) or not math.isnan(totals.slack_ms)):
        target_ms = _allowance_ms(totals.slack_ms, totals.pace_s * 1e3)
    if decode == 0 or math.isnan(target_ms):
        return int(budget)
    low, high = min(decode + totals.min_prefill, budget), budget
    while low < high:
        middle = (low + high + 1) // 2
        prefill = middle - decode
        pairs = int(_shared_attention(e.ahead, totals.prompts, prefill))
        ms = step_ms(e.dense_ms, e.costs, decode, prefill, totals.context, pairs, decode)
        if ms * totals.q_r <= target_ms:
            low = middle
        else:
            high = middle - 1
    return int(low)


@compiled
def _take_stock(e: EngineArrays) -> None:
    """Note what is left after the step."""
    totals = e.totals[0]
    step = e.steps[totals.steps - 1]
    waiting_tokens = totals.queued_tokens
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        if job.state == PREFILL:
            waiting_tokens += job.prompt + job.tokens - job.computed
    first, second = e.lanes[0], e.lanes[1]
    step.running, step.waiting_tokens = totals.running, waiting_tokens
    step.waiting = first.stacked + first.tail - first.head
    step.waiting += second.stacked + second.tail - second.head
    step.kv_used = totals.num_blocks - totals.free_blocks


@compiled
def run(e: EngineArrays, until: float) -> int:
    """Step until `until` with the token budget as the only bound; REACHED, FULL or STUCK."""
    totals = e.totals[0]
    status = begin(e, until)
    while status == READY:
        status = execute(e, totals.token_budget)
        if status == READY:
            status = begin(e, until)
    return status


@compiled
def run_settled(e: EngineArrays, until: float) -> int:
    """Step until `until`, paced by the device's own times; REACHED, FULL or STUCK."""
    status = begin(e, until)
    while status == READY:
        status = execute(e, settled_total(e))
        if status == READY:
            status = begin(e, until)
    return status
