"""A pod's runtime API over HTTP, and how a call can fail.

PodError
├── PodUnreachableError  no answer in time
├── PodRefusedError      an answer that says no: 401, 404, 409, 422, 503, with its status and body
└── PodAnswerError       an answer that is not what docs/runtime-api.md says
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

import aiohttp
import msgspec

from paceline_operator.telemetry import LimitsAnswer, Telemetry, decode_limits, decode_telemetry
from paceline_operator.tuning.model import PodTarget

Answer = TypeVar("Answer")

_MAX_BODY_BYTES = 64 * 1024 * 1024
_SHOWN_CHARACTERS = 200


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


class HttpPodClient:
    """PodClient on aiohttp. Use as an async context manager, or call `close`."""

    def __init__(self, timeout_s: float = 3.0) -> None:
        """Give each call `timeout_s` in all, connecting included."""
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Nothing to open yet: the first call does."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Read what happened after record `since`."""
        body = await self._call(pod, "GET", f"/runtime/telemetry?since={since}", None)
        return _decoded(pod, body, decode_telemetry)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change limits or renew their lease."""
        answer = await self._call(pod, "PATCH", "/runtime/limits", msgspec.json.encode(body))
        return _decoded(pod, answer, decode_limits)

    async def _call(self, pod: PodTarget, method: str, path: str, body: bytes | None) -> bytes:
        url = pod.admin_url.rstrip("/") + path
        headers = {"Authorization": f"Bearer {pod.token}", "Content-Type": "application/json"}
        try:
            # No redirects: the token goes to the pod and nowhere else.
            async with self._opened().request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                content = await response.content.read(_MAX_BODY_BYTES + 1)
                status = response.status
                while len(content) <= _MAX_BODY_BYTES and not response.content.at_eof():
                    content += await response.content.read(_MAX_BODY_BYTES)
        except TimeoutError as error:
            raise PodUnreachableError(
                f"pod {pod.name}: no answer in {self._timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PodUnreachableError(f"pod {pod.name}: {error or type(error).__name__}") from error
        if len(content) > _MAX_BODY_BYTES:
            raise PodAnswerError(f"pod {pod.name}: more than {_MAX_BODY_BYTES} bytes")
        if status != 200:  # noqa: PLR2004 - HTTP's own number
            raise PodRefusedError(pod.name, status, content.decode(errors="replace"))
        return content

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session


def _decoded(pod: PodTarget, body: bytes, decode: Callable[[bytes], Answer]) -> Answer:
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise PodAnswerError(f"pod {pod.name}: {error}") from error
