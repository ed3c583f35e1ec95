"""The engine's load now, as telemetry reports it."""

import math
from collections import Counter
from itertools import chain

from paceline_engine.engine.stepping import Counters
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.scheduling.request_table import LANES, RequestTable
from paceline_wire import EngineLoad

_MAX_LENGTHS = 256


def load_of(
    requests: RequestTable,
    counters: Counters,
    *,
    graph_use: GraphUse,
    stuck_admissions: int,
    now: float,
    gc_pause_ms: float,
) -> EngineLoad:
    """Describe the engine now."""
    pool = requests.blocks.pool
    waiting = chain.from_iterable(requests.waiting.values())
    oldest = min((request.arrived_at for request in waiting), default=now)
    return EngineLoad(
        running=requests.num_running,
        waiting=requests.num_waiting,
        waiting_tokens=requests.num_waiting_tokens,
        oldest_waiting_s=max(now - oldest, 0.0),
        kv_used_blocks=pool.num_used,
        kv_cached_blocks=pool.num_cached,
        prefix_queries=requests.blocks.prefix.queries,
        prefix_hits=requests.blocks.prefix.hits,
        preemptions=requests.num_preemptions,
        prompt_tokens=counters.prompt_tokens,
        output_tokens=counters.output_tokens,
        gc_pause_ms=gc_pause_ms,
        waiting_by_lane={lane: len(requests.waiting[lane]) for lane in LANES},
        running_by_lane={lane: requests.num_running_of[lane] for lane in LANES},
        running_output_tokens=_lengths([r.num_output_tokens for r in requests.running()]),
        draft_tokens=requests.num_drafted,
        accepted_tokens=requests.num_accepted,
        drafts=requests.accepted_lengths.total(),
        accepted_by_position=_by_position(requests.accepted_lengths),
        displaced=requests.num_displaced,
        swapped=requests.num_swapped,
        padding_tokens=counters.padding_tokens,
        prompt_tokens_by_lane=_split(counters.prompt_tokens, counters.batch_prompt_tokens),
        output_tokens_by_lane=_split(counters.output_tokens, counters.batch_output_tokens),
        stuck_admissions=stuck_admissions,
        overlap_fallbacks=counters.overlap_fallbacks,
        batch_lane_paused_steps=counters.batch_lane_paused_steps,
        graph_steps=graph_use.decodes,
        graph_fallbacks=dict(graph_use.eager),
        graph_mixed_steps=graph_use.mixed,
        kv_unfilled_tokens=sum(map(requests.blocks.unfilled, requests.running())),
    )


def _lengths(lengths: list[int]) -> list[int]:
    """Return at most 256 of the lengths, evenly sampled: running requests are in order of age."""
    return lengths[:: max(1, math.ceil(len(lengths) / _MAX_LENGTHS))]


def _by_position(accepted: Counter[int]) -> list[int]:
    """Count the drafts whose token at each position was accepted, from the first position on."""
    places = range(max(accepted, default=0))
    return [sum(n for length, n in accepted.items() if length > place) for place in places]


def _split(total: int, batch: int) -> dict[str, int]:
    return {"interactive": total - batch, "batch": batch}
