"""PodClient: what the tuner asks of a pod, and how a call can fail.

PodError
├── PodUnreachableError  no answer in time
├── PodRefusedError      an answer that says no: 404, 409, 422, 503, with its status and body
│   └── TokenRefusedError  401: the pod knows another token, or none
└── PodAnswerError       an answer that is not what docs/runtime-api.md says
"""

import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import msgspec

from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry

Answer = TypeVar("Answer")

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""A longer answer is refused: three times all records that a sidecar keeps."""
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_SHOWN_CHARACTERS: Final = 200


class PodError(Exception):
    """A pod did not do what it was asked."""


class PodUnreachableError(PodError):
    """The pod gave no answer in time."""


class PodRefusedError(PodError):
    """The pod answered no."""

    def __init__(self, pod: str, status: int, body: str) -> None:
        """Keep the status: the caller may know what it means."""
        super().__init__(f"pod {pod} answered {status}: {body[:_SHOWN_CHARACTERS]}")
        self.status = status


class TokenRefusedError(PodRefusedError):
    """The pod does not accept the token."""


class PodAnswerError(PodError):
    """The pod's answer does not match the runtime API."""


class PodClient(Protocol):
    """All that the tuner asks of a pod."""

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Read what happened after record `since`. Raises PodError."""
        ...

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change limits or renew their lease. Raises PodError."""
        ...


@lru_cache(maxsize=64)
def tls_context(ca_bundle: str) -> ssl.SSLContext:
    """Trust these authorities, in PEM, and none of the machine's; nobody where it is empty.

    Raises ssl.SSLError for what is no PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_bundle:
        context.load_verify_locations(cadata=ca_bundle)
    return context


def decoded(pod: PodTarget, status: int, body: bytes, decode: Callable[[bytes], Answer]) -> Answer:
    """Read a pod's answer.

    Raises PodRefusedError (TokenRefusedError), or PodAnswerError where it cannot be read.

    `body` may be cut off behind `MAX_BODY_BYTES`.
    """
    if len(body) > MAX_BODY_BYTES:
        raise PodAnswerError(f"pod {pod.name}: more than {MAX_BODY_BYTES} bytes")
    if status == _UNAUTHORIZED:
        raise TokenRefusedError(pod.name, status, body.decode(errors="replace"))
    if status != _OK:
        raise PodRefusedError(pod.name, status, body.decode(errors="replace"))
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise PodAnswerError(f"pod {pod.name}: {error}") from error
