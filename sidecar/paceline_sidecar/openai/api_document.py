"""The OpenAPI document of the public port, made from the types of its requests and answers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic.json_schema import models_json_schema

from paceline_sidecar.anthropic.answer import AnswerMessage, MessageEvent, TokenCount
from paceline_sidecar.anthropic.error_response import MessagesErrorBody
from paceline_sidecar.anthropic.request import CountTokensRequest, MessagesRequest
from paceline_sidecar.batches.objects import (
    Batch,
    BatchPage,
    BatchRequest,
    DeletedFile,
    FileObject,
    FilePage,
)
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.chat_response import ChatCompletion, ChatCompletionChunk
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.completion_response import TextCompletion
from paceline_sidecar.openai.error_response import STATUSES, ErrorBody
from paceline_sidecar.openai.model_cards import ModelCard, ModelCards
from paceline_sidecar.openai.pooling_job import Embeddings, Scores
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest, ScoreRequest
from paceline_sidecar.openai.tokenize_request import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from paceline_sidecar.readiness import Readiness
from paceline_sidecar.responses_api.answer import ModelResponse, ResponseEvent
from paceline_sidecar.responses_api.request import ResponsesRequest

_VERSION = "3.1.0"
_REFERENCE = "#/components/schemas/"
_CLIENT_LEFT = 499
_KEPT = (400, 401, 404, 413)
"""The error statuses of requests for files and batches."""
_UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"const": "batch"},
    },
    "required": ["file", "purpose"],
}
_READY = "Tell whether a request can be served now."

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path: what it takes and what it answers."""

    method: Literal["get", "post", "delete"]
    path: str
    """As the document writes it: `{name}` is a parameter."""
    summary: str
    answer: Any
    """The type of a JSON answer; the media type of any other; None where there is no body."""
    body: type[BodyPart] | None = None
    event: type[msgspec.Struct] | None = None
    """What a stream's events hold, where `stream` asks for one."""
    statuses: tuple[int, ...] = ()
    """Errors, where they are not all that a request for a model can meet."""
    form: Schema | None = None
    """The parts of a form, where that is what it takes."""
    may_be_unready: bool = False
    """Whether a 503 is a regular answer, with the same body as a 200."""
    error: type[msgspec.Struct] = ErrorBody
    """The body of an error."""


OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation.",
        ChatCompletion,
        ChatRequest,
        ChatCompletionChunk,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue a text.",
        TextCompletion,
        CompletionRequest,
        TextCompletion,
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer a text or items with items.",
        ModelResponse,
        ResponsesRequest,
        ResponseEvent,
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation, in Anthropic's shape.",
        AnswerMessage,
        MessagesRequest,
        MessageEvent,
        error=MessagesErrorBody,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation, in Anthropic's shape.",
        TokenCount,
        CountTokensRequest,
        error=MessagesErrorBody,
    ),
    Operation("post", "/v1/embeddings", "Embed texts.", Embeddings, EmbeddingsRequest),
    Operation(
        "post", "/v1/score", "Score how likely one text follows another.", Scores, ScoreRequest
    ),
    Operation("post", "/v1/files", "Upload a file.", FileObject, form=_UPLOAD, statuses=_KEPT),
    Operation("get", "/v1/files", "List files.", FilePage, statuses=_KEPT),
    Operation("get", "/v1/files/{id}", "Describe a file.", FileObject, statuses=_KEPT),
    Operation("delete", "/v1/files/{id}", "Delete a file.", DeletedFile, statuses=_KEPT),
    Operation(
        "get",
        "/v1/files/{id}/content",
        "Read a file.",
        "application/octet-stream",
        statuses=_KEPT,
    ),
    Operation("post", "/v1/batches", "Begin a batch.", Batch, BatchRequest, statuses=_KEPT),
    Operation("get", "/v1/batches", "List batches.", BatchPage, statuses=_KEPT),
    Operation("get", "/v1/batches/{id}", "Describe a batch.", Batch, statuses=_KEPT),
    Operation("post", "/v1/batches/{id}/cancel", "End a batch.", Batch, statuses=_KEPT),
    Operation("get", "/v1/models", "List the models.", ModelCards, statuses=(401,)),
    Operation("get", "/v1/models/{name}", "Describe one model.", ModelCard, statuses=(401, 404)),
    Operation("post", "/tokenize", "Tokenize a prompt.", TokenizeResponse, TokenizeRequest),
    Operation("post", "/detokenize", "Join tokens.", DetokenizeResponse, DetokenizeRequest),
    Operation("get", "/health/live", "Tell whether the server answers.", dict[str, str]),
    Operation("get", "/health/ready", _READY, Readiness, may_be_unready=True),
    Operation("get", "/health", _READY, None, may_be_unready=True),
    Operation("get", "/ping", _READY, None, may_be_unready=True),
    Operation("post", "/ping", _READY, None, may_be_unready=True),
    Operation("get", "/version", "Tell Paceline's version.", dict[str, str]),
    Operation("get", "/metrics", "Metrics in Prometheus' format.", "text/plain"),
)


def api_document(*, version: str, has_keys: bool) -> Schema:
    """Describe every path of the public port."""
    bodies, body_schemas = _body_schemas([op.body for op in OPERATIONS if op.body])
    answers, answer_schemas = _answer_schemas(_answer_types())
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        described = _described(operation, bodies, answers)
        paths.setdefault(operation.path, {})[operation.method] = described
    both = body_schemas.keys() & answer_schemas.keys()
    if both:
        msg = f"a request and an answer share a name: {sorted(both)}"
        raise ValueError(msg)
    components: Schema = {"schemas": {**body_schemas, **answer_schemas}}
    document: Schema = {
        "openapi": _VERSION,
        "info": {"title": "Paceline", "version": version},
        "paths": paths,
        "components": components,
    }
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _answer_types() -> list[Any]:
    wanted: list[Any] = []
    for operation in OPERATIONS:
        kinds = (operation.answer, operation.event, operation.error)
        wanted += [kind for kind in kinds if kind is not None and not isinstance(kind, str)]
    return wanted


def _described(operation: Operation, bodies: dict[Any, Schema], answers: dict[Any, Schema]) -> Any:
    name = re.sub("[^a-z]{1,99}", "_", operation.path).strip("_")
    described: Schema = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{name}",
        "responses": {"200": _success(operation, answers)},
    }
    parameters = re.findall(r"{([a-z_]{1,64})}", operation.path)
    if parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if operation.form is not None:
        content = {"multipart/form-data": {"schema": operation.form}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.body is not None:
        content = {"application/json": {"schema": bodies[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    for status in _statuses(operation):
        described["responses"][str(status)] = {
            "description": _REASONS[status],
            "content": {"application/json": {"schema": answers[operation.error]}},
        }
    if operation.may_be_unready:
        described["responses"]["503"] = {**described["responses"]["200"], "description": "Not now."}
    return described


def _success(operation: Operation, answers: dict[Any, Schema]) -> Schema:
    if operation.answer is None:
        return {"description": "Success."}
    if isinstance(operation.answer, str):
        content: Schema = {operation.answer: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": answers[operation.answer]}}
    if operation.event is not None:
        stream = (
            "Server-sent events; each `data:` holds one `x-event`. Completions end in `[DONE]`."
        )
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": stream},
            "x-event": answers[operation.event],
        }
    return {"description": "Success.", "content": content}


# What a request meets before anybody looks at it, and what may become of it then.
_REASONS = {
    status: " Or: ".join(
        (kind.__doc__ or "").splitlines()[0] for kind, row in STATUSES.items() if row[0] == status
    )
    for status in sorted({status for status, _ in STATUSES.values()})
    if status != _CLIENT_LEFT
}


def _statuses(operation: Operation) -> Iterable[int]:
    is_generating = operation.body is not None and not operation.statuses
    return _REASONS if is_generating else operation.statuses


def _body_schemas(kinds: list[type[BodyPart]]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    template = f"{_REFERENCE}{{model}}"
    wanted, made = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template=template
    )
    schemas: dict[str, Schema] = made["$defs"]
    for schema in schemas.values():
        _take_null(schema)
    return {kind: schema for (kind, _), schema in wanted.items()}, schemas


def _take_null(schema: Schema) -> None:
    """A null counts as a field that was not sent, wherever one need not be sent."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        kinds = [each.get("type") for each in field.get("anyOf", [field])]
        if name not in required and "null" not in kinds:
            default = {"default": field.pop("default")} if "default" in field else {}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **default}


def _answer_schemas(kinds: list[Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    described, schemas = msgspec.json.schema_components(kinds, ref_template=f"{_REFERENCE}{{name}}")
    return dict(zip(kinds, described, strict=True)), schemas
