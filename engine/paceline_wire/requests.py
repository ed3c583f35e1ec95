"""What a request asks for, and what a step gives it."""

from typing import Literal

import msgspec

from paceline_wire.limits import Lane

FinishReason = Literal["stop", "length", "abort", "error"]
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
    """Return the log-probability of each output token, and of this many likeliest tokens."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    pooling: Pooling | None = None
    """Return an embedding of the prompt, pooled this way, beside the next token."""


class Grammar(msgspec.Struct, frozen=True):
    """What an output must be."""

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str
    """The schema, the expression, a JSON list of strings, or the grammar (Lark, or GBNF)."""


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
    turn_at: float | None = None
    """It is queued before waiting requests of its lane with a later turn; None: behind all."""
    cache_salt: str = ""
    """Prefix blocks are shared only within one salt."""
    caller: str = ""
    """Who sent it, where callers are told apart: their grammars are compiled in turns."""
    grammar: Grammar | None = None
    """Compiled first; the request waits for it outside the queue."""
    adapter: str = ""
    """Name of a loaded LoRA adapter; the model as it is where empty."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget these requests and free their blocks within two steps. Unknown ids are ignored."""

    ids: list[str]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one token and of the likeliest ones, as the model itself gives them."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability."""
    rank: int
    """1 for the likeliest."""
    top_ids: list[int]
    """The likeliest tokens, best first, as many as were asked for."""
    top_logprobs: list[float]


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
    logprobs: list[TokenLogprobs] = []
    """One for each of `token_ids`, where `Sampling.logprobs` asks."""
    prompt_logprobs: list[TokenLogprobs] = []
    """From the prompt's second token on, where asked; set on the first output."""
    embedding: bytes = b""
    """The prompt's, where `Sampling.pooling` asks: float32, length 1, set on the first output."""


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """One step's outputs, at most one per request."""

    at: float
    outputs: list[Output]
