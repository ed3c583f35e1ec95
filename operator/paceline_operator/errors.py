"""What can go wrong between the operator and a cluster.

OperatorError
├── ApiError               the API server answered with an error, or not at all: try again
│   ├── ConflictError      somebody else was faster
│   ├── WriteRefusedError  a manifest of ours is invalid or forbidden: a person must act
│   └── TerminatingError   the namespace is being deleted: nothing is left to do
├── GoneError              the service is not there any more: the watch has yet to say so
├── TokenKeyError          the Secret of the operator's key holds none: a person must act
├── LeavingError           an object of that name is about to be deleted: wait
├── NameTakenError         an object of that name belongs to somebody else: a person must act
└── NotLeadingError        another replica holds the Lease: write nothing
"""

import json
from typing import Any, Final

_CONFLICT: Final = 409
_REFUSED: Final = frozenset({400, 403, 422})
# Server-side apply answers 500 where a field is unknown: that is our manifest's fault all the same.
_UNTYPED: Final = "failed to create typed patch object"
# The `Status` carries it as a cause; the HTTP code is the 403 of a missing right.
_TERMINATING: Final = "NamespaceTerminating"


class OperatorError(Exception):
    """Root of the tree."""


class ApiError(OperatorError):
    """A request that failed; `code` is 0 where no answer came."""

    retry_after_s: float = 0.0
    """How long the API server asks to be left alone."""

    def __init__(self, verb: str, what: str, code: int, message: str) -> None:
        super().__init__(
            f"{verb} {what}: {code} {message}" if code else f"{verb} {what}: {message}"
        )
        self.code = code
        self.answer = message


class ConflictError(ApiError):
    """The object exists, or changed since it was read."""


class WriteRefusedError(ApiError):
    """The API server understood and declined."""


class TerminatingError(ApiError):
    """The namespace takes nothing new, because it is being deleted."""


class GoneError(OperatorError):
    """The watch speaks of a service that is gone, or whose name another has taken."""

    def __init__(self, key: str) -> None:
        super().__init__(f"InferenceService {key} is gone, though the watch has not said so yet")


class TokenKeyError(OperatorError):
    """Tokens cannot be derived."""


class LeavingError(OperatorError):
    """A child of an earlier service of that name is still there; the collector takes it."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} of an earlier InferenceService is being deleted")


class NameTakenError(OperatorError):
    """Writing would take an object away from its owner."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} exists and is not owned by this InferenceService")


class NotLeadingError(OperatorError):
    """The Lease is not ours."""


def from_answer(verb: str, what: str, code: int, text: bytes) -> ApiError:
    """Choose the most precise error for an HTTP answer, which holds a `Status` or anything."""
    status = _status(text)
    message = str(status.get("message", "")) or text.decode(errors="replace")[:500]
    if code == _CONFLICT:
        return ConflictError(verb, what, code, message)
    causes = (status.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == _TERMINATING for cause in causes):
        return TerminatingError(verb, what, code, message)
    if code in _REFUSED or _UNTYPED in message:
        return WriteRefusedError(verb, what, code, message)
    return ApiError(verb, what, code, message)


def _status(text: bytes) -> dict[str, Any]:
    try:
        status = json.loads(text)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
