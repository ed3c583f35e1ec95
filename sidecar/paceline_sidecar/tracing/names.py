"""Every span and attribute once; docs/tracing.md is held equal by a test.

Names of OpenTelemetry's semantic conventions (HTTP, GenAI) where there is one, ours otherwise.
"""

from dataclasses import dataclass
from typing import Final

REQUEST: Final = "POST {path}"
LINE: Final = "batch line {path}"
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
STREAM: Final = "stream"
HANDED_OVER: Final = "handed to the engine"

SPANS: dict[str, str] = {
    REQUEST: "an HTTP request, from its arrival to the last byte of its answer (kind `SERVER`)",
    LINE: "one try of a line of a batch (kind `INTERNAL`, a trace of its own)",
    QUEUE: "of a choice: arrival to the first chunk in a step. The event `handed to the engine`"
    " divides the sidecar's queue from the engine's",
    PREFILL: "of a choice: first chunk in a step to the first token",
    DECODE: "of a choice: first token to the last, or to where it was ended",
    STREAM: "of a streamed answer: first byte to last",
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row of the page."""

    name: str
    spans: tuple[str, ...]
    help: str


_ROOTS = (REQUEST, LINE)
_CHOICE = (QUEUE, PREFILL, DECODE)

METHOD = Attribute("http.request.method", (REQUEST,), "`POST`")
ROUTE = Attribute("http.route", (REQUEST,), "the path of the API")
STATUS = Attribute("http.response.status_code", (REQUEST,), "200, 429, …")
ERROR = Attribute(
    "error.type",
    _ROOTS,
    "where it was not served: the reason of a refusal (`queue_full`, `hopeless`, …) or the error",
)
OPERATION = Attribute(
    "gen_ai.operation.name", _ROOTS, "`chat`, `text_completion`, `embeddings` or the path's end"
)
PROVIDER = Attribute("gen_ai.provider.name", _ROOTS, "`paceline`")
MODEL = Attribute(
    "gen_ai.request.model", _ROOTS, "the served name, or the LoRA adapter that answers"
)
MAX_TOKENS = Attribute("gen_ai.request.max_tokens", _ROOTS, "output tokens that were asked for")
TEMPERATURE = Attribute("gen_ai.request.temperature", _ROOTS, "of the sampling")
NUM_CHOICES = Attribute(
    "gen_ai.request.choice.count",
    _ROOTS,
    "choices of all prompts, where more than one; the first 16 have spans",
)
IS_STREAM = Attribute("gen_ai.request.stream", (REQUEST,), "whether the answer is streamed")
INPUT_TOKENS = Attribute(
    "gen_ai.usage.input_tokens", (*_ROOTS, PREFILL), "prompt tokens; each prompt counts once"
)
CACHED_TOKENS = Attribute(
    "gen_ai.usage.cache_read.input_tokens",
    (*_ROOTS, PREFILL),
    "of those, found in the prefix cache",
)
OUTPUT_TOKENS = Attribute("gen_ai.usage.output_tokens", (*_ROOTS, DECODE), "generated tokens")
FINISH = Attribute(
    "gen_ai.response.finish_reasons", (*_ROOTS, DECODE), "`stop` or `length`, one for each choice"
)
FIRST_CHUNK = Attribute(
    "gen_ai.response.time_to_first_chunk",
    (REQUEST,),
    "of a stream: seconds from arrival to the first token",
)
LANE = Attribute("paceline.lane", _ROOTS, "`interactive` or `batch`")
OUTCOME = Attribute(
    "paceline.outcome",
    (*_ROOTS, *_CHOICE),
    "`ok`, `refused`, `shed`, `timeout`, `failed`, `cancelled`; `invalid` for a bad request",
)
TTFT = Attribute("paceline.ttft_ms", _ROOTS, "arrival to the first token of any choice")
TPOT = Attribute("paceline.tpot_ms", (DECODE,), "mean time per token after the first")
ITL_MAX = Attribute("paceline.itl_max_ms", (DECODE,), "the longest gap between two tokens")
EPOCH = Attribute("paceline.limits_epoch", _ROOTS, "number of the limits in force on arrival")
REQUEST_ID = Attribute("paceline.request_id", (REQUEST,), "`x-request-id` of the answer")
BATCH_ID = Attribute("paceline.batch_id", (LINE,), "the batch that the line is of")
CHOICE = Attribute("paceline.choice", _CHOICE, "number of the choice, from 0")

ATTRIBUTES: tuple[Attribute, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Attribute)
)

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def operation_of(path: str) -> str:
    """Return what the convention calls what a path does."""
    return _OPERATIONS.get(path, path.rpartition("/")[2])
