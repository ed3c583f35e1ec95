"""The runtime API of pods over HTTP, from the command line: PodClient on httpx."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
import msgspec

from paceline_tuner.pods import MAX_BODY_BYTES, PodUnreachableError, decoded, tls_context
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry, decode_limits, decode_telemetry


class HttpxPodClient:
    """PodClient on httpx. Use as an async context manager."""

    def __init__(self, timeout_s: float = 3.0) -> None:
        """Give each call `timeout_s` in all, connecting included."""
        self._timeout_s = timeout_s
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By what they verify certificates by."""

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
        for client in self._clients.values():
            await client.aclose()

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Read what happened after record `since`."""
        answer = await self._call(pod, "GET", f"/runtime/telemetry?since={since}", None)
        return decoded(pod, *answer, decode_telemetry)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Change limits or renew their lease."""
        answer = await self._call(pod, "PATCH", "/runtime/limits", msgspec.json.encode(body))
        return decoded(pod, *answer, decode_limits)

    async def _call(
        self, pod: PodTarget, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Ask; the answer's status and body."""
        url = pod.admin_url.rstrip("/") + path
        headers = {"Authorization": f"Bearer {pod.token}", "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client(pod).stream(
                    method,
                    url,
                    content=body,
                    headers=headers,
                    extensions={"sni_hostname": pod.server_name} if pod.has_tls else None,
                ) as response,
            ):
                content = b""
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > MAX_BODY_BYTES:
                        break
                return response.status_code, content
        except TimeoutError as error:
            raise PodUnreachableError(
                f"pod {pod.name}: no answer in {self._timeout_s:g} s"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise PodUnreachableError(f"pod {pod.name}: {error or type(error).__name__}") from error

    def _client(self, pod: PodTarget) -> httpx.AsyncClient:
        if pod.ca_bundle not in self._clients:
            # No redirects: the token goes to the pod and nowhere else.
            self._clients[pod.ca_bundle] = httpx.AsyncClient(
                timeout=None,  # noqa: S113 - `_call` has one for the whole call
                follow_redirects=False,
                verify=tls_context(pod.ca_bundle),
            )
        return self._clients[pod.ca_bundle]
