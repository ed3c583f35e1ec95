"""What can go wrong with one request.

SidecarError
├── InvalidRequest         the client's fault; names the field
│   ├── ModelUnknown
│   ├── ObjectUnknown      a file or a batch that is not there, or is another caller's
│   └── BodyTooLarge
├── Unauthorized           no key, or a wrong one
├── Refused                refused on arrival or while waiting, with a time to come back
├── Unavailable            no engine now: starting, dead, stalled or draining
├── TimedOut               the request's own deadline passed
├── EngineFault            the engine gave this request up
└── ClientLeft             nobody is there to read the answer

`openai/error_response.py` maps each to its HTTP status.
"""

from typing import Literal

RefusalReason = Literal[
    "queue_full",
    "queue_tokens",
    "hopeless",
    "ttft_lost",
    "displaced",
    "key_concurrency",
    "key_requests",
    "key_tokens",
    "key_places",
]
UnavailableReason = Literal["engine_starting", "engine_lost", "engine_stalled", "draining"]


class SidecarError(Exception):
    """Every error that is an answer to a client."""


class InvalidRequest(SidecarError):  # noqa: N818 - an answer to a client, named as it reads there
    """The request can never succeed as it is."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ModelUnknown(InvalidRequest):
    """The request names another model than the one served."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The model `{name[:100]}` does not exist here.", param="model", code="model_not_found"
        )


class ObjectUnknown(InvalidRequest):
    """No file or batch of this caller has that id."""

    def __init__(self, kind: str, id_: str) -> None:
        super().__init__(f"There is no {kind} `{id_[:100]}`.", param="id", code="not_found")


class BodyTooLarge(InvalidRequest):
    """The body is longer than the sidecar reads."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than {max_bytes} bytes.", code="body_too_large"
        )


class Unauthorized(SidecarError):  # noqa: N818 - as InvalidRequest
    """No key, or one that is not known."""


class Refused(SidecarError):  # noqa: N818 - as InvalidRequest
    """Refused now; may succeed after `retry_after_s`."""

    def __init__(self, reason: RefusalReason, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.reason: RefusalReason = reason
        self.retry_after_s = retry_after_s

    @property
    def shed(self) -> bool:
        """Return whether it is refused for its deadline, whatever the length of the queue."""
        return self.reason in {"hopeless", "ttft_lost"}


class Unavailable(SidecarError):  # noqa: N818 - as InvalidRequest
    """There is no engine for this request now."""

    def __init__(self, reason: UnavailableReason, message: str) -> None:
        super().__init__(message)
        self.reason: UnavailableReason = reason


class TimedOut(SidecarError):  # noqa: N818 - as InvalidRequest
    """The request's own deadline passed before it was done."""


class EngineFault(SidecarError):  # noqa: N818 - as InvalidRequest
    """The engine gave this one request up."""


class ClientLeft(SidecarError):  # noqa: N818 - as InvalidRequest
    """The client closed the connection before the answer was complete."""
