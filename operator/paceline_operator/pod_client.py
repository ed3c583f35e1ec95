"""The runtime API of pods over HTTP, from the cluster: PodClient on aiohttp."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from paceline_operator.pod_loading import PodLoading
from paceline_tuner.pods import MAX_BODY_BYTES, PodUnreachableError, decoded, tls_context
from paceline_tuner.sample import SAMPLE
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry, decode_limits, decode_telemetry


class _Health(msgspec.Struct):
    """What we read of the answer of `/health/ready`."""

    loading: PodLoading | None = None


class AiohttpPodClient:
    """PodClient on aiohttp. Use as an async context manager, or call `close`."""

    def __init__(
        self, timeout_s: float = 3.0, check_leadership: Callable[[], None] = lambda: None
    ) -> None:
        """Give each call `timeout_s` in all, connecting included.

        `check_leadership` raises before a change that another leader might be doing; one that comes
        late all the same finds another epoch, and only renews the lease.
        """
        self._timeout_s = timeout_s
        self._check_leadership = check_leadership
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
        """Read what happened after record `since`, as a sample where the pod gives one."""
        answer = await self._call(
            pod, "GET", f"/runtime/telemetry?since={since}&sample={SAMPLE}", None
        )
        return decoded(pod, *answer, decode_telemetry)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change limits or renew their lease; raises what `check_leadership` does."""
        self._check_leadership()
        answer = await self._call(pod, "PATCH", "/runtime/limits", msgspec.json.encode(body))
        return decoded(pod, *answer, decode_limits)

    async def get_loading(self, pod: PodTarget) -> PodLoading | None:
        """Read how far its engine is; None where it does not load, or the sidecar does not say."""
        _, content = await self._call(pod, "GET", "/health/ready", None)
        try:
            return msgspec.json.decode(content, type=_Health).loading
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def _call(
        self, pod: PodTarget, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Ask; the answer's status and body."""
        url = pod.admin_url.rstrip("/") + path
        headers = {
            "Authorization": f"Bearer {pod.token}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        try:
            # No redirects: the token goes to the pod and nowhere else.
            async with self._opened().request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                ssl=tls_context(pod.ca_bundle) if pod.has_tls else True,
                server_hostname=pod.server_name if pod.has_tls else None,
            ) as response:
                content = bytearray()
                while len(content) <= MAX_BODY_BYTES and not response.content.at_eof():
                    content += await response.content.read(MAX_BODY_BYTES)
                return response.status, bytes(content)
        except TimeoutError as error:
            raise PodUnreachableError(
                f"pod {pod.name}: no answer in {self._timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PodUnreachableError(f"pod {pod.name}: {error or type(error).__name__}") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            # Half a megabyte can be unpacked to half a gigabyte, while every other pod waits; and
            # a hundred pods that hang must not keep the next one from being asked.
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # pods need none, and each call looks for some
            )
        return self._session
