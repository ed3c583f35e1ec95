"""What telemetry reports of the engine: counters since start, step records, the load now."""

import math
from dataclasses import dataclass, field

from paceline_engine.core.batch import Batch
from paceline_engine.core.request import Request
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.scheduling.request_table import LANES, RequestTable
from paceline_wire import EngineLoad, StepRecord

_MAX_LENGTHS = 256


@dataclass(slots=True)
class Counters:
    """Counted since start."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    padding_tokens: int = 0
    """Tokens computed only to fill batches up."""
    batch_prompt_tokens: int = 0
    """The batch lane's part of `prompt_tokens`."""
    batch_output_tokens: int = 0
    """The batch lane's part of `output_tokens`."""
    overlap_fallbacks: int = 0
    """Steps that were scheduled only after the one before was settled, though steps overlap."""

    def count(self, batch: Batch, sampled: list[Request]) -> None:
        """Add a step that has run."""
        prompts = batch.chunks[batch.num_decodes + batch.num_drafted :]
        chunks = [piece for piece in prompts if not piece.is_padding]
        self.steps += 1
        self.padding_tokens += batch.num_padding
        self.prompt_tokens += sum(piece.count for piece in chunks)
        self.output_tokens += sum(request.num_newest for request in sampled)
        self.batch_prompt_tokens += sum(
            piece.count for piece in chunks if piece.request.lane == "batch"
        )
        self.batch_output_tokens += sum(
            request.num_newest for request in sampled if request.lane == "batch"
        )


@dataclass(slots=True)
class StepLog:
    """Step records that no telemetry message has carried yet."""

    max_records: int = 20_000
    records: list[StepRecord] = field(default_factory=list)

    def append(self, record: StepRecord) -> None:
        """Keep a record; drop the oldest half when the log is full."""
        if len(self.records) >= self.max_records:
            del self.records[: self.max_records // 2]
        self.records.append(record)

    def take(self) -> list[StepRecord]:
        """Return the kept records and forget them."""
        taken, self.records = self.records, []
        return taken


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
    heads = [lane.head for lane in requests.waiting.values()]
    oldest = min((head.arrived_at for head in heads if head is not None), default=now)
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
        displaced=requests.num_displaced,
        swapped=requests.num_swapped,
        padding_tokens=counters.padding_tokens,
        prompt_tokens_by_lane=_split(counters.prompt_tokens, counters.batch_prompt_tokens),
        output_tokens_by_lane=_split(counters.output_tokens, counters.batch_output_tokens),
        stuck_admissions=stuck_admissions,
        overlap_fallbacks=counters.overlap_fallbacks,
        graph_steps=graph_use.full,
        graph_fallbacks=dict(graph_use.eager),
        graph_piece_steps=graph_use.piecewise,
    )


def _lengths(lengths: list[int]) -> list[int]:
    """At most 256 of them, evenly spread: running requests are in order of age."""
    return lengths[:: max(1, math.ceil(len(lengths) / _MAX_LENGTHS))]


def _split(total: int, batch: int) -> dict[str, int]:
    return {"interactive": total - batch, "batch": batch}
