"""Anthropic's shape of our errors."""

import msgspec
from starlette.responses import Response

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.openai.error_response import body_of, status_of

_PATH = "/v1/messages"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesError(msgspec.Struct, frozen=True):
    """What Anthropic's client reads."""

    type: str
    message: str


class MessagesErrorBody(msgspec.Struct, frozen=True):
    """`{"type": "error", "error": {...}}`."""

    error: MessagesError
    request_id: str | None = None
    type: str = "error"


def is_of_messages(path: str) -> bool:
    """Tell whether a path answers in Anthropic's shape."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def messages_error(error: SidecarError, request_id: str | None = None) -> MessagesErrorBody:
    """Return the body of an error, also sent as the last event of a broken stream."""
    return error_body(status_of(error), body_of(error).error.message, request_id)


def error_body(status: int, message: str, request_id: str | None = None) -> MessagesErrorBody:
    """Return the body of an answer with that status."""
    return MessagesErrorBody(MessagesError(_KINDS.get(status, "api_error"), message), request_id)


def reshaped(answer: Response, message: str, request_id: str | None) -> Response:
    """Return OpenAI's answer to a failure in Anthropic's shape; status and headers stay."""
    body = msgspec.json.encode(error_body(answer.status_code, message, request_id))
    kept = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return Response(body, answer.status_code, kept, "application/json")
