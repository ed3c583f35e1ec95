"""Which prompts a step admits and how many tokens each gets: compiled.

Prompts that were begun go before the heads of the lanes, each lane in its turn; all blocks of a
prompt are taken at admission. A lane whose head finds no room lets the other pass.
"""

import math

from paceline_engine.scheduling.budget import MAX_UNFINISHED
from plants.compiled import compiled
from plants.state import PREFILL, Engine

_MIN_CHUNK = 16  # smaller pieces of a long prompt are not worth their overhead
_MIN_SHARE = 0.01
_NO_BOUND = 1 << 40


@compiled
def _admit(e: Engine, number: int, most: int) -> int:
    """Admit the first request of a lane if there is a row and room for all it has, else -1.

    One with over `most` known tokens stays where it is.
    """
    totals, lane = e.totals[0], e.lanes[number]
    waiting = lane.stacked + lane.tail - lane.head
    if waiting == 0 or totals.running >= totals.max_batch_size:
        return -1
    is_stacked = lane.stacked > 0
    i = e.stack[number, lane.stacked - 1] if is_stacked else e.queue[number, lane.head]
    job = e.jobs[i]
    known = job.prompt + job.tokens
    if known > most:
        return -1
    blocks = (known + totals.block_size - 1) // totals.block_size
    # Each running request may soon need a block more: leave it, or it would preempt at once.
    if totals.free_blocks - blocks < totals.running:
        return -1
    if is_stacked:
        lane.stacked -= 1
    else:
        lane.head += 1
    hits = job.cached if totals.now < totals.collapse_s else 0
    job.state, job.blocks, job.computed = PREFILL, blocks, hits
    if math.isnan(job.scheduled_s):
        job.scheduled_s, job.hits, job.epoch = totals.now, hits, totals.epoch
        totals.prefix_queries += job.prompt
        totals.prefix_hits += hits
    totals.free_blocks -= blocks
    totals.queued_tokens -= known
    e.running[totals.running] = i
    totals.running += 1
    return int(i)


@compiled
def _open_lanes(e: Engine) -> None:
    """Start the lanes' turns: one that wanted nothing until now has saved up no credit."""
    totals = e.totals[0]
    totals.prefill_end = totals.running
    for number in range(2):
        lane = e.lanes[number]
        lane.cursor = 0
        lane.is_open = lane.stacked + lane.tail - lane.head > 0
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        if job.state == PREFILL:
            e.lanes[job.lane].is_open = True
    for number in range(2):
        lane, other = e.lanes[number], e.lanes[1 - number]
        if lane.is_open and not lane.was_open and other.is_open and other.was_open:
            lane.served = max(lane.served, other.served)
    for number in range(2):
        e.lanes[number].was_open = e.lanes[number].is_open


@compiled
def _next_begun(e: Engine, number: int) -> int:
    """Find the next prompt of the lane that was begun in an earlier step, else -1."""
    lane = e.lanes[number]
    while lane.cursor < e.totals[0].prefill_end:
        i = e.running[lane.cursor]
        lane.cursor += 1
        if e.jobs[i].state == PREFILL and e.jobs[i].lane == number:
            return int(i)
    return -1


@compiled
def share(e: Engine, tokens: int) -> None:
    """Share prefill tokens among the prompts, lane by lane in turn."""
    totals, first, second = e.totals[0], e.lanes[0], e.lanes[1]
    totals.granted = 0
    _open_lanes(e)
    unfinished = 0
    while tokens > 0 and (first.is_open or second.is_open):
        is_second = second.is_open and (not first.is_open or second.served < first.served)
        number = 1 if is_second else 0
        lane = e.lanes[number]
        i = _next_begun(e, number)
        if i < 0 and totals.preempted == 0:
            i = _admit(e, number, tokens if unfinished >= MAX_UNFINISHED else _NO_BOUND)
        if i < 0:
            lane.is_open = False
            continue
        job = e.jobs[i]
        remaining = job.prompt + job.tokens - job.computed
        # A prompt that cannot be finished takes half: a short one behind it starts as well.
        grant = remaining if remaining <= tokens else max(tokens // 2, min(tokens, _MIN_CHUNK))
        job.grant = grant
        unfinished += grant < remaining
        tokens -= grant
        lane.served += grant / max(lane.share, _MIN_SHARE)
        e.granted[totals.granted] = i
        totals.granted += 1
    for k in range(totals.granted):
        job = e.jobs[e.granted[k]]
        more = min(job.prompt + job.tokens - job.computed - job.grant, tokens)
        job.grant += more
        tokens -= more
        e.lanes[job.lane].served += more / max(e.lanes[job.lane].share, _MIN_SHARE)
