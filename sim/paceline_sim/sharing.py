"""Which prompts a step admits and how many tokens each gets: compiled.

Prompts that were begun go before the heads of the lanes, each lane in its turn; all blocks of a
prompt are taken at admission. A lane whose head finds no room lets the other pass; an interactive
head takes row and blocks from batch requests that hold more than their lane's share.
"""

import math

import numpy as np

from paceline_engine.scheduling.fair_share import BESIDE_DECODES, MAX_CREDIT, MIN_SHARE
from paceline_engine.scheduling.prefill import MAX_UNFINISHED
from paceline_sim.compiled import compiled
from paceline_sim.holding import next_yielding, preempt, rows_to_take
from paceline_sim.state import DECODE, PREFILL, EngineArrays

_MIN_CHUNK = 16  # smaller pieces of a long prompt are not worth their overhead
_NO_BOUND = 1 << 40


@compiled
def _displace(e: EngineArrays, place: int) -> None:
    """Take a batch request out of the step that is being made."""
    totals = e.totals[0]
    job = e.jobs[e.running[place]]
    if job.state == DECODE:
        totals.decode -= 1
        totals.context -= job.computed + 1
    preempt(e, place)
    totals.displaced += 1
    totals.prefill_end -= place < totals.prefill_end
    for number in range(2):
        e.lanes[number].cursor -= place < e.lanes[number].cursor


@compiled
def _make_room(e: EngineArrays, blocks: int, needs_row: bool) -> bool:
    """Displace as many batch requests as it takes; nobody where that is not enough."""
    totals = e.totals[0]
    if needs_row and rows_to_take(e) == 0:
        return False
    held = 0
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        held += job.blocks * job.lane
    kept = e.lanes[1].share * totals.num_blocks
    free = totals.free_blocks - blocks
    leaving, last = 0, len(e.jobs)
    victims = np.empty(totals.running, np.int64)
    while not (free >= totals.running - leaving and (leaving > 0 or not needs_row)):
        place = next_yielding(e, last)
        if place < 0:
            break
        last = e.running[place]
        job = e.jobs[last]
        is_over_share = held > kept or (needs_row and leaving == 0)
        if job.grant > 0 or not is_over_share:
            continue
        victims[leaving] = last
        leaving += 1
        free += job.blocks
        held -= job.blocks
    if leaving == 0 or free < totals.running - leaving:
        return False
    for k in range(leaving):
        place = 0
        while e.running[place] != victims[k]:
            place += 1
        _displace(e, place)
    return True


@compiled
def _may_take_row(e: EngineArrays) -> bool:
    """Tell whether a batch request may have a row, seen from those that would take it back."""
    totals, first, second = e.totals[0], e.lanes[0], e.lanes[1]
    if totals.displaced > 0:
        return False
    kept = max(1, int(second.share * totals.max_batch_size))
    waiting = first.stacked + first.tail - first.head
    return bool(second.held < kept or totals.max_batch_size - totals.running > waiting)


@compiled
def _admit(e: EngineArrays, number: int, most: int) -> int:
    """Admit the first request of a lane if there is a row and room for all it has, else -1.

    One with over `most` known tokens stays where it is.
    """
    totals, lane = e.totals[0], e.lanes[number]
    waiting = lane.stacked + lane.tail - lane.head
    if waiting == 0 or (number == 1 and not _may_take_row(e)):
        return -1
    is_stacked = lane.stacked > 0
    i = e.stack[number, lane.stacked - 1] if is_stacked else e.queue[number, lane.head]
    job = e.jobs[i]
    known = job.prompt + job.tokens
    if known > most:
        return -1
    blocks = (known + totals.block_size - 1) // totals.block_size
    has_row = totals.running < totals.max_batch_size
    # Each running request may soon need a block more: leave it, or it would preempt at once.
    fits = has_row and totals.free_blocks - blocks >= totals.running
    if not fits and (number == 1 or not _make_room(e, blocks, not has_row)):
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
    lane.tokens -= known
    lane.held += 1
    e.running[totals.running] = i
    totals.running += 1
    return int(i)


@compiled
def _open_lanes(e: EngineArrays) -> None:
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
            lane.served = max(lane.served, other.served - (MAX_CREDIT if number == 0 else 0.0))
    for number in range(2):
        e.lanes[number].was_open = e.lanes[number].is_open


@compiled
def _next_begun(e: EngineArrays, number: int) -> int:
    """Find the next prompt of the lane that was begun in an earlier step, else -1."""
    lane = e.lanes[number]
    while lane.cursor < e.totals[0].prefill_end:
        i = e.running[lane.cursor]
        lane.cursor += 1
        if e.jobs[i].state == PREFILL and e.jobs[i].lane == number:
            return int(i)
    return -1


@compiled
def _batch_most(e: EngineArrays, tokens: int) -> tuple[int, int]:
    """Tokens that the batch lane may have: without interactive prompts in the step, and with."""
    totals, first, second = e.totals[0], e.lanes[0], e.lanes[1]
    part = max(second.share, MIN_SHARE)
    part = tokens * part / (max(first.share, MIN_SHARE) + part)
    alone = math.ceil(part * BESIDE_DECODES) if first.held > 0 else tokens
    if not first.is_open:
        return alone, alone
    wanted = first.tokens
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        if job.state == PREFILL and job.lane == 0:
            wanted += job.prompt + job.tokens - job.computed
    most = math.ceil(part)
    is_burst = wanted > tokens - most
    return alone, 0 if is_burst and first.served < second.served else most


@compiled
def _give_rest(e: EngineArrays, tokens: int, batch_tokens: int) -> None:
    """Give what nobody needed to those that were left unfinished, the first one first."""
    for k in range(e.totals[0].granted):
        job = e.jobs[e.granted[k]]
        left = tokens if job.lane == 0 else max(0, min(tokens, batch_tokens))
        more = min(job.prompt + job.tokens - job.computed - job.grant, left)
        job.grant += more
        tokens -= more
        batch_tokens -= more * job.lane
        e.lanes[job.lane].served += more / max(e.lanes[job.lane].share, MIN_SHARE)


@compiled
def share(e: EngineArrays, tokens: int) -> None:
    """Share prefill tokens among the prompts, lane by lane in turn."""
    totals, first, second = e.totals[0], e.lanes[0], e.lanes[1]
    totals.granted = totals.displaced = 0
    _open_lanes(e)
    alone, most = _batch_most(e, tokens)
    unfinished = np.zeros(2, np.int64)
    spent = np.zeros(2, np.int64)
    while tokens > 0:
        left = min(tokens, most - spent[1])
        may_second = second.is_open and left > 0
        if not first.is_open and not may_second:
            break
        number = 1 if may_second and (not first.is_open or second.served < first.served) else 0
        if number == 0:
            left = tokens
        lane = e.lanes[number]
        i = _next_begun(e, number)
        if i < 0 and totals.preempted == 0:
            in_way = unfinished[0] + (unfinished[1] if number == 1 else 0)
            i = _admit(e, number, left if in_way >= MAX_UNFINISHED else _NO_BOUND)
        if i < 0:
            lane.is_open = False
            if number == 0 and spent[0] == 0:
                most = alone
            continue
        job = e.jobs[i]
        remaining = job.prompt + job.tokens - job.computed
        # A prompt that cannot be finished takes half: a short one behind it starts as well.
        grant = remaining if remaining <= left else max(left // 2, min(left, _MIN_CHUNK))
        job.grant = grant
        unfinished[number] += grant < remaining
        tokens -= grant
        spent[number] += grant
        lane.served += grant / max(lane.share, MIN_SHARE)
        e.granted[totals.granted] = i
        totals.granted += 1
    _give_rest(e, tokens, most - spent[1])
