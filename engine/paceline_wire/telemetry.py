"""What the engine reports of itself: its steps, the fitted step model, the load."""

from typing import Literal

import msgspec

from paceline_wire.step_cost import MeasuredStep

WhyEager = Literal["prefill", "draft", "adapter", "padding"]
"""Why a step runs op by op though CUDA graphs are replayed for others."""
Origin = Literal["prior", "profile", "seed", "fit"]


class StepRecord(MeasuredStep, frozen=True, array_like=True):
    """One step that has run: its features, its times and what it left waiting.

    `wall_ms` is from when the step began to be chosen, or from the end of the step before where
    steps overlap, without `draft_ms`. So the walls of steps that follow one another never overlap,
    and are what a token costs: where the device is the slower of the two its time, else the host's.
    """

    seq: int
    """Number of the step since the engine started; no gaps."""
    at: float
    """End of the step."""
    host_ms: float
    """The part of `wall_ms` that is scheduling, preparation and settling on the host.

    Where steps overlap it is all the time that was not spent waiting for the device, for whichever
    step it was: hidden behind the device while it is less than `wall_ms`.
    """
    running: int
    waiting: int
    waiting_tokens: int
    """Uncached prompt tokens not yet prefilled, of waiting and running requests."""
    kv_used: int
    """Blocks held by running requests."""
    preemptions: int
    """Requests preempted in this step."""
    epoch: int
    token_budget: int
    """The token budget that applied to this step."""
    paced_tokens: int
    """The token total that the pacer allowed; equals `token_budget` when the pacer is off."""
    predicted_ms: float
    """The step model's prediction before the step, q_r left out; 0 without a model."""
    clean: bool
    """False for steps the model must not learn from (warm-up, preemption)."""
    draft_ms: float = 0.0
    """Time that a draft model took before the step, which has a step model of its own."""


class StepModelInfo(msgspec.Struct, frozen=True):
    """The fitted step-time model, in milliseconds (docs/runtime-api.md)."""

    theta: list[float]
    """th0..th4 of the formula in `step_cost`."""
    prior: list[float]
    knee: int
    """h."""
    correction: list[float]
    """Factor per bin of `bin_tokens` of T, from 1 token on; 1 where unvisited."""
    fast: float
    q_r: float
    """0.95 quantile of measured / predicted over the last 1,000 steps."""
    samples: int
    mape: float
    """Mean absolute relative error over the last 1,000 clean steps."""
    valid: bool
    reason: str
    """Why not valid; empty when valid."""
    origin: Origin = "prior"
    """Where theta comes from.

    Assumed, measured before any request, sent in a change of the limits, or fitted to its steps.
    """
    bin_tokens: int = 128
    """How wide a bin of `correction` is; larger steps than the last bin's share it."""


class EngineLoad(msgspec.Struct, frozen=True):
    """The load of the engine at the time of the message."""

    running: int
    waiting: int
    waiting_tokens: int
    oldest_waiting_s: float
    kv_used_blocks: int
    kv_cached_blocks: int
    """Free blocks that still hold a reusable prefix."""
    prefix_queries: int
    """Prompt tokens looked up since start."""
    prefix_hits: int
    """Prompt tokens found since start."""
    preemptions: int
    """Preemptions since start."""
    prompt_tokens: int
    """Prefilled since start."""
    output_tokens: int
    """Generated since start."""
    gc_pause_ms: float
    """Total of the collector's pauses in the step loop since start."""
    waiting_by_lane: dict[str, int]
    running_by_lane: dict[str, int]
    running_output_tokens: list[int] = []
    """Tokens generated so far by each running request; of more than 256, an even sample."""
    draft_tokens: int = 0
    """Draft tokens that were computed, since start."""
    accepted_tokens: int = 0
    """How many of `draft_tokens` were accepted."""
    drafts: int = 0
    """How many times one or more tokens were drafted and verified, since start."""
    accepted_by_position: list[int] = []
    """How many drafts had their first token accepted, their second, and so on."""
    displaced: int = 0
    """How many of `preemptions` were batch requests that gave way to an interactive arrival."""
    swapped: int = 0
    """How many of `preemptions` moved their blocks to host memory, to be copied back later."""
    padding_tokens: int = 0
    """Tokens computed only to fill static and dynamic batches up, since start."""
    prompt_tokens_by_lane: dict[str, int] = {}
    """`prompt_tokens`, by lane."""
    output_tokens_by_lane: dict[str, int] = {}
    """`output_tokens`, by lane."""
    stuck_admissions: int = 0
    """How often requests waited though a row and blocks were free, since start."""
    overlap_fallbacks: int = 0
    """Steps that had to wait for the tokens of the one before though steps overlap, since start."""
    graph_steps: int = 0
    """Steps that were replayed whole from a CUDA graph."""
    graph_fallbacks: dict[str, int] = {}
    """Steps that ran op by op though others are replayed, by reason, since start."""
    graph_mixed_steps: int = 0
    """Steps with prompts, drafts or padding that were replayed from CUDA graphs."""
    kv_unfilled_tokens: int = 0
    """Tokens for which the blocks of running requests have room beyond those that they know."""
    batch_lane_paused_steps: int = 0
    """Steps that the batch lane's decodes left out for people's prompts, since start."""


class EngineTelemetry(msgspec.Struct, frozen=True, tag=True):
    """Sent every 200 ms, with or without steps: also the heartbeat."""

    at: float
    load: EngineLoad
    model: StepModelInfo
    steps: list[StepRecord]
    """Every step since the last message."""
