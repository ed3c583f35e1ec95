"""The HTTP status and the OpenAI-shaped body of each of our errors."""

import math

import msgspec
from starlette.responses import Response

from paceline_sidecar import errors

# The status of a request whose client left is never seen; it is for the access log.
_CLIENT_LEFT = 499

STATUSES: dict[type[errors.SidecarError], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request_error"),
    errors.ModelUnknown: (404, "invalid_request_error"),
    errors.ObjectUnknown: (404, "invalid_request_error"),
    errors.BodyTooLarge: (413, "invalid_request_error"),
    errors.Unauthorized: (401, "authentication_error"),
    errors.Refused: (429, "rate_limit_error"),
    errors.Unavailable: (503, "service_unavailable_error"),
    errors.TimedOut: (504, "timeout_error"),
    errors.EngineFault: (500, "server_error"),
    errors.ClientLeft: (_CLIENT_LEFT, "client_closed_request"),
}


class ErrorObject(msgspec.Struct, frozen=True):
    """What the official clients read."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """`{"error": {...}}`."""

    error: ErrorObject


def status_of(error: errors.SidecarError) -> int:
    """The HTTP status of an error."""
    return _row(error)[0]


def body_of(error: errors.SidecarError) -> ErrorBody:
    """The body of an error, also sent as the last event of a broken stream."""
    code: str | None = None
    match error:
        case errors.InvalidRequest():
            code = error.code
        case errors.Refused() | errors.Unavailable():
            code = error.reason
        case errors.Unauthorized():
            code = "invalid_api_key"
        case errors.TimedOut():
            code = "deadline_exceeded"
    param = error.param if isinstance(error, errors.InvalidRequest) else None
    return ErrorBody(ErrorObject(str(error), _row(error)[1], param, code))


def response_of(error: errors.SidecarError, *, away_s: float = 1.0) -> Response:
    """The whole answer to a request that failed before its first byte.

    `away_s` is how long the engine will be away, where it is.
    """
    headers = {}
    if isinstance(error, errors.Refused):
        headers.update(_retry_after(error.retry_after_s))
    if isinstance(error, errors.Unavailable):
        # Another pod may be ready at once; this one is when its engine is back.
        headers.update(_retry_after(1.0 if error.reason == "draining" else away_s))
        # Over a new connection a Service leads the next try to a pod that is ready.
        headers["connection"] = "close"
    if isinstance(error, errors.Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return plain_response(status_of(error), body_of(error), headers)


def plain_response(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
    """An error that no `SidecarError` stands for: unknown path, wrong method, our own fault."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _retry_after(seconds: float) -> dict[str, str]:
    """Return `Retry-After` in whole seconds, and `retry-after-ms`, which OpenAI's clients read."""
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1e3)),
    }


def _row(error: errors.SidecarError) -> tuple[int, str]:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
