"""Every message between sidecar and engine, as msgspec structs in MessagePack.

One ZeroMQ pair on `ipc://{run_dir}/engine.sock`: the engine binds a ROUTER, the sidecar connects
a DEALER and sends `Hello` until the engine answers. The engine answers with `Loading` while the
model loads, then with `Ready`; it sends `Failed` before it exits for a reason that a person can
act on. Times named `*_at` are CLOCK_MONOTONIC seconds, which all processes of a host share.

This module is the only one of the engine, beside `limits`, that the sidecar may import.
"""

from typing import Literal

import msgspec

from paceline_engine.limits import Lane

FinishReason = Literal["stop", "length", "abort", "error"]
Origin = Literal["prior", "seed", "fit"]
Pooling = Literal["mean", "last"]


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token of one request is chosen."""

    max_tokens: int
    """Output tokens at most; the sidecar has already cut it to the context."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    seed: int | None = None
    """Same seed, same prompt, same output, whatever else is in the batch."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    """Taken from the score of each token that the output already holds."""
    frequency_penalty: float = 0.0
    """Taken from the score of a token once for each time that the output holds it."""
    repetition_penalty: float = 1.0
    """Divides positive scores, and multiplies negative ones, of tokens of prompt and output."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one's probability are not chosen."""
    logit_bias: dict[int, float] = {}
    """Token to what is added to its score."""
    logprobs: int | None = None
    """Tell the log-probability of each output token, and those of this many best tokens."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    pooling: Pooling | None = None
    """Answer with what the model makes of the prompt, beside the token that follows it."""


class Grammar(msgspec.Struct, frozen=True):
    """What an output must be."""

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str
    """The schema, the expression, a JSON list of strings, or the grammar (Lark, or GBNF)."""


class Likelihood(msgspec.Struct, frozen=True, array_like=True):
    """How likely the model found one token, before anything that a request asks to change."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability."""
    rank: int
    """1 for the likeliest."""
    top_ids: list[int]
    """The likeliest tokens, best first, as many as were asked for."""
    top_logprobs: list[float]


# --- sidecar to engine ---------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The sidecar is here; the engine answers `Loading`, `Ready` or `Failed`."""


class Submit(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Run one request. Output comes back in `Outputs` under the same id."""

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    lane: Lane = "interactive"
    arrived_at: float = 0.0
    """When the sidecar accepted the HTTP request: the start of TTFT."""
    deadline_at: float | None = None
    """Past it the request is refused while waiting and aborted while running."""
    cache_salt: str = ""
    """Prefix blocks are shared only within one salt."""
    grammar: Grammar | None = None
    """Compiled first; the request waits for it outside the queue."""
    adapter: str = ""
    """Name of a loaded LoRA adapter; the model as it is where empty."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget these requests and free their blocks within two steps. Unknown ids are ignored."""

    ids: list[str]


class Coefficients(msgspec.Struct, frozen=True):
    """A step-time model that was fitted elsewhere, on the same model, engine and device."""

    theta: list[float]
    """th0..th4, as in `StepModelInfo`."""
    knee: int
    correction: list[float] = []
    """Factor per bin of `bin_tokens`; a bin that is left out is not corrected."""
    bin_tokens: int = 128
    """An engine with other bins corrects nothing by them."""


class SetLimits(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change any subset of the limits. Answered by `LimitsState` with the same `call`."""

    call: int
    epoch: int
    """Must be greater than the engine's epoch, or equal to it to renew the lease unchanged."""
    max_batch_size: int | None = None
    token_budget: int | None = None
    step_target_ms: float | None = None
    clear_step_target: bool = False
    """Switch the pacer off: only the token budget bounds a step."""
    interactive_share: float | None = None
    batch_share: float | None = None
    lease_s: float | None = None
    """Without renewal the engine returns to its last certified limits after this long."""
    certified: bool = False
    """The operator has certified the limits that now hold: what a lost lease returns to."""
    pace_tpot_ms: float | None = None
    clear_pace_tpot: bool = False
    """Pace steps by the step target again, if there is one."""
    batch_step_target_ms: float | None = None
    clear_batch_step_target: bool = False
    """The batch lane wants what all want again."""
    coefficients: Coefficients | None = None
    """Where the step model starts from while it has no fit of its own; ignored afterwards."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load a LoRA adapter from a folder of PEFT. Answered by `AdaptersState` with the same `call`.

    New requests may name it from then on.
    """

    call: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget a LoRA adapter. Answered as `LoadAdapter`. Requests that have it go on with it."""

    call: int
    name: str


ToEngine = Hello | Submit | Abort | SetLimits | LoadAdapter | UnloadAdapter


# --- engine to sidecar ---------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The model is being loaded."""

    stage: str
    fraction: float
    """0 to 1."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot serve and is about to exit."""

    reason: str
    """One of the condition reasons: DownloadFailed, RevisionNotFound, DoesNotFit, ..."""
    message: str


class ModelInfo(msgspec.Struct, frozen=True):
    """What the sidecar must know of the model; the tokenizer's files lie in the run directory."""

    name: str
    family: str
    revision: str
    dtype: str
    device: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: list[int]
    kv_bytes_per_token: int
    weight_bytes: int
    engine_version: str = ""
    features: list[str] = []
    """What else a step's cost depends on, `name=value`, sorted: threads, attention, CPU."""


class CapacityInfo(msgspec.Struct, frozen=True):
    """`limits.Capacity`, on the wire."""

    max_batch_size: int
    max_token_budget: int
    num_blocks: int
    block_size: int
    max_model_len: int


class LimitsView(msgspec.Struct, frozen=True):
    """`limits.Limits`, on the wire."""

    max_batch_size: int
    token_budget: int
    step_target_ms: float | None
    interactive_share: float
    batch_share: float
    pace_tpot_ms: float | None = None
    batch_step_target_ms: float | None = None


class LimitsState(msgspec.Struct, frozen=True, tag=True):
    """What was asked for, what holds, and since when."""

    call: int
    """The `SetLimits.call` answered, 0 when the engine speaks by itself (a lost lease)."""
    requested: LimitsView
    effective: LimitsView
    certified: LimitsView
    capacity: CapacityInfo
    epoch: int
    since_step: int
    """The first step that ran, or will run, under `effective`."""
    lease_expires_at: float | None
    lease_lost: bool
    clamped: list[str]
    """Fields of `requested` that capacity or the running decodes changed."""
    ignored: list[str] = []
    """Fields of the change that had no effect: `coefficients`, once there is a fit."""
    error: str | None = None
    """Why nothing was changed, when nothing was."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine serves. `instance` differs after every start."""

    instance: str
    model: ModelInfo
    limits: LimitsState
    adapters: list[str] = []
    """LoRA adapters that requests may name."""


class AdaptersState(msgspec.Struct, frozen=True, tag=True):
    """Which LoRA adapters requests may name, after a change or a refusal of one."""

    call: int
    adapters: list[str]
    error: str | None = None


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step gave one request."""

    id: str
    token_ids: list[int]
    finish: FinishReason | None = None
    error: str | None = None
    """Why, when `finish` is `error`; `deadline` when the request's own time ran out."""
    is_invalid: bool = False
    """The error is the request's own: as it is, it can never run."""
    cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache; set on the first output."""
    scheduled_at: float | None = None
    """When its first chunk was scheduled; set on the first output."""
    likelihoods: list[Likelihood] = []
    """Of `token_ids`, where `Sampling.logprobs` asked."""
    prompt_likelihoods: list[Likelihood] = []
    """Of the prompt from its second token on, where asked; set on the first output."""
    embedding: bytes = b""
    """Of the prompt, where `Sampling.pooling` asked: float32, length 1, set on the first output."""


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """One step's outputs, at most one per request."""

    at: float
    outputs: list[Output]


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step, as the step model sees it (the features of docs/runtime-api.md)."""

    seq: int
    """Number of the step since the engine started; no gaps."""
    at: float
    """End of the step."""
    wall_ms: float
    host_ms: float
    """Of `wall_ms`: scheduling, preparation and settling on the host."""
    decode: int
    """d: decode sequences in the step."""
    prefill: int
    """p: uncached prefill tokens in the step."""
    context: int
    """C: sum of the context lengths of the decode sequences, tokens."""
    attention: int
    """A: sum over prefill chunks of chunk * (context before + chunk / 2)."""
    running: int
    waiting: int
    waiting_tokens: int
    """Uncached prompt tokens not yet prefilled, of waiting and running requests."""
    kv_used: int
    """Blocks held by running requests."""
    preemptions: int
    """In this step."""
    epoch: int
    token_budget: int
    """The cap that held."""
    paced_tokens: int
    """The token total that the pacer allowed; equals `token_budget` when the pacer is off."""
    predicted_ms: float
    """The step model's prediction before the step, q_r left out; 0 without a model."""
    clean: bool
    """False for steps the model must not learn from (warm-up, preemption)."""


class StepModelInfo(msgspec.Struct, frozen=True):
    """The fitted step-time model, in milliseconds (docs/runtime-api.md)."""

    theta: list[float]
    """th0..th4 of t = th0 + th1*T + th2*max(0, T-h) + th3*C/1e3 + th4*A/1e6."""
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
    """Where theta comes from: assumed, sent in a change of the limits, or this engine's own fit."""
    bin_tokens: int = 128
    """How wide a bin of `correction` is; larger steps than the last bin's share it."""


class EngineLoad(msgspec.Struct, frozen=True):
    """The engine now."""

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
    """Since start."""
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
    """Guessed tokens that were computed, since start."""
    accepted_tokens: int = 0
    """Of `draft_tokens`, those that were right."""
    displaced: int = 0
    """Of `preemptions`, batch requests that gave way to an interactive arrival."""
    swapped: int = 0
    """Of `preemptions`, those whose blocks went to host memory instead of being computed again."""
    padding_tokens: int = 0
    """Computed only to fill static and dynamic batches up, since start."""
    prompt_tokens_by_lane: dict[str, int] = {}
    """`prompt_tokens`, by lane."""
    output_tokens_by_lane: dict[str, int] = {}
    """`output_tokens`, by lane."""
    stuck_admissions: int = 0
    """Spells in which requests waited though a row and blocks were free, since start."""


class Telemetry(msgspec.Struct, frozen=True, tag=True):
    """Sent every 200 ms, with or without steps: also the heartbeat."""

    at: float
    load: EngineLoad
    model: StepModelInfo
    steps: list[StepRecord]
    """Every step since the last message."""


FromEngine = Loading | Failed | Ready | LimitsState | AdaptersState | Outputs | Telemetry

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
