"""Who waits, who holds blocks, and who must give them up: compiled, before a step's prefill.

The rules are those of Paceline's scheduler (engine/paceline_engine/scheduling), written anew: a
decode without a free block preempts the newest of the lower lane, which computes all again.
Prefix hits skip prefill but hold blocks of their own: what sharing would save is not modelled.
"""

import math

import numpy as np

from paceline_engine.scheduling.prefill import MANY_PROMPTS
from paceline_sim.compiled import compiled
from paceline_sim.state import DECODE, ENDED, FAILED, SHED, WAITING, EngineArrays

_LEAD, _SLACK_QUANTILE = 0.93, 0.2  # as the engine paces by slack
_MAX_PREEMPTIONS = 3  # after them a batch request ranks as interactive
_BATCH = 1  # the lane that gives way


@compiled
def end(e: EngineArrays, i: int, outcome: int, at: float) -> None:
    """Let go of a request and of its blocks."""
    job, totals = e.jobs[i], e.totals[0]
    job.state, job.outcome, job.finished_s = ENDED, outcome, at
    totals.free_blocks += job.blocks
    e.lanes[job.lane].held -= job.blocks > 0
    job.blocks = 0
    e.ended[totals.ended] = i
    totals.ended += 1


@compiled
def arrive(e: EngineArrays) -> None:
    """Queue who has come; refuse who could never fit."""
    totals = e.totals[0]
    while totals.arrived < len(e.jobs) and e.jobs[totals.arrived].arrival_s <= totals.now:
        i = totals.arrived
        totals.arrived += 1
        job = e.jobs[i]
        length = job.prompt + job.output
        if length > totals.max_model_len or length > totals.num_blocks * totals.block_size:
            end(e, i, FAILED, job.arrival_s)
            continue
        lane = e.lanes[job.lane]
        job.state = WAITING
        place = lane.tail
        while place > lane.head and e.jobs[e.queue[job.lane, place - 1]].turn_s > job.turn_s:
            e.queue[job.lane, place] = e.queue[job.lane, place - 1]
            place -= 1
        e.queue[job.lane, place] = i
        lane.tail += 1
        totals.queued_tokens += job.prompt
        lane.tokens += job.prompt


@compiled
def shed(e: EngineArrays) -> None:
    """Refuse who has waited in its lane longer than the deadline, or than its own patience."""
    totals = e.totals[0]
    if math.isinf(totals.shed_s) and totals.is_patient:
        return
    for number in range(2):
        lane = e.lanes[number]
        kept = lane.head
        for place in range(lane.head, lane.tail):
            i = e.queue[number, place]
            waited_s = totals.now - e.jobs[i].arrival_s
            if waited_s <= min(totals.shed_s, e.jobs[i].patience_s):
                e.queue[number, kept] = i
                kept += 1
                continue
            totals.queued_tokens -= e.jobs[i].prompt
            lane.tokens -= e.jobs[i].prompt
            end(e, i, SHED, totals.now)
        lane.tail = kept


@compiled
def _victim(e: EngineArrays) -> int:
    """Place in `running` of who gives way: the batch lane first, in a lane the newest."""
    worst, worst_rank = 0, -1
    for k in range(e.totals[0].running):
        i = e.running[k]
        lower = e.jobs[i].lane == 1 and e.jobs[i].preemptions < _MAX_PREEMPTIONS
        rank = i + (len(e.jobs) if lower else 0)
        if rank > worst_rank:
            worst, worst_rank = k, rank
    return worst


@compiled
def preempt(e: EngineArrays, place: int) -> None:
    """Take row and blocks from a request, which goes back to the front of its lane."""
    totals = e.totals[0]
    i = e.running[place]
    for k in range(place, totals.running - 1):
        e.running[k] = e.running[k + 1]
    totals.running -= 1
    job = e.jobs[i]
    lane = e.lanes[job.lane]
    totals.free_blocks += job.blocks
    totals.queued_tokens += job.prompt + job.tokens
    lane.tokens += job.prompt + job.tokens
    lane.held -= 1
    totals.preemptions += 1
    job.state, job.blocks, job.computed = WAITING, 0, 0
    job.preemptions += 1
    e.stack[job.lane, lane.stacked] = i
    lane.stacked += 1


@compiled
def extend_decodes(e: EngineArrays) -> None:
    """Give a block to each decode whose blocks are full; preempt where none is free."""
    totals = e.totals[0]
    k = 0
    while k < totals.running:
        job = e.jobs[e.running[k]]
        if job.state != DECODE or job.computed < job.blocks * totals.block_size:
            k += 1
        elif totals.free_blocks > 0:
            job.blocks += 1
            totals.free_blocks -= 1
            k += 1
        else:
            place = _victim(e)
            preempt(e, place)
            totals.preempted += 1
            k -= place < k  # who comes next has moved down


@compiled
def next_yielding(e: EngineArrays, before: int) -> int:
    """Place in `running` of the newest batch request older than `before` that may be displaced."""
    place = newest = -1
    for k in range(e.totals[0].running):
        i = e.running[k]
        job = e.jobs[i]
        if newest < i < before and job.lane == _BATCH and job.preemptions < _MAX_PREEMPTIONS:
            place, newest = k, i
    return place


@compiled
def rows_to_take(e: EngineArrays) -> int:
    """Rows that interactive requests may take from the batch lane, now that none is free."""
    totals = e.totals[0]
    if totals.running != totals.max_batch_size or e.lanes[_BATCH].held == 0:
        return 0
    able = 0
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        able += job.lane == _BATCH and job.preemptions < _MAX_PREEMPTIONS
    kept = int(e.lanes[_BATCH].share * totals.max_batch_size)
    return int(min(max(0, e.lanes[_BATCH].held - kept), able))


@compiled
def _list(e: EngineArrays, listed: int, remaining: int, before: int) -> int:
    """Add a prompt to those of the next step, if there is room; return how many are listed."""
    if listed == len(e.ahead):
        return listed
    e.ahead[listed, 0], e.ahead[listed, 1] = remaining, before
    return listed + 1


@compiled
def measure(e: EngineArrays) -> None:
    """Note the next step's decodes and what could be prefilled in it."""
    totals = e.totals[0]
    decode = context = wanted = listed = 0
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        if job.state == DECODE:
            decode += 1
            context += job.computed + 1
        else:
            remaining = job.prompt + job.tokens - job.computed
            listed = _list(e, listed, remaining, job.computed)
            wanted += remaining
    rows = totals.max_batch_size - totals.running
    prompts = totals.running - decode
    for number in range(2):
        lane = e.lanes[number]
        waiting = lane.stacked + lane.tail - lane.head
        prompts += waiting
        spare = rows_to_take(e) if number == 0 and waiting > 0 else 0
        for k in range(waiting):
            if rows + spare <= 0 or wanted >= totals.token_budget:
                break
            if k < lane.stacked:
                i = e.stack[number, lane.stacked - 1 - k]
            else:
                i = e.queue[number, lane.head + k - lane.stacked]
            job = e.jobs[i]
            hits = job.cached if totals.now < totals.collapse_s else 0
            listed = _list(e, listed, job.prompt + job.tokens - hits, hits)
            wanted += job.prompt + job.tokens
            rows -= 1
    totals.decode, totals.context = decode, context
    totals.wanted, totals.prompts = wanted, listed
    totals.slack_ms = math.nan
    if totals.pace_s > 0 and decode > 0 and prompts <= MANY_PROMPTS:
        totals.slack_ms = _slack_ms(e)


@compiled
def _slack_ms(e: EngineArrays) -> float:
    """How far four of five decodes are ahead of their pace, at least (docs/tuner.md)."""
    totals = e.totals[0]
    ahead_s = np.empty(totals.decode)
    count = 0
    for k in range(totals.running):
        job = e.jobs[e.running[k]]
        if job.state == DECODE:
            ahead_s[count] = job.first_s + _LEAD * totals.pace_s * job.tokens - totals.now
            count += 1
    ahead_s.sort()
    return float(ahead_s[int(_SLACK_QUANTILE * (count - 1))] * 1e3)
