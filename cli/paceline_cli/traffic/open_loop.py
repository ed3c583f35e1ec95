"""Sends a plan open-loop: each request at its time, however many are still unanswered."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

import httpx

from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.record import ClientRecord, Outcome

Sink = Callable[[ClientRecord], None]


class StreamError(Exception):
    """The server ended a stream with an error event."""


async def drive(
    client: httpx.AsyncClient,
    requests: Sequence[PlannedRequest],
    *,
    model: str,
    sink: Sink,
    timeout_s: float = 120.0,
) -> None:
    """Send every request at its planned time; return when all are answered.

    `client` has the server's address as its base URL; `sink` gets each record when it is complete.
    """
    start_at = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            planned_at = start_at + request.at_s
            await asyncio.sleep(planned_at - time.monotonic())
            group.create_task(
                _send_into(sink, client, request, planned_at, model=model, timeout_s=timeout_s)
            )


async def _send_into(
    sink: Sink,
    client: httpx.AsyncClient,
    request: PlannedRequest,
    planned_at: float,
    *,
    model: str,
    timeout_s: float,
) -> None:
    sink(await send(client, request, planned_at, model=model, timeout_s=timeout_s))


async def send(
    client: httpx.AsyncClient,
    request: PlannedRequest,
    planned_at: float,
    *,
    model: str,
    timeout_s: float,
) -> ClientRecord:
    """Stream one completion and record when each piece arrived. Never raises for a bad answer."""
    sent_at = time.monotonic()
    token_ats: list[float] = []
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    outcome: Outcome = "ok"
    error = ""
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,  # the plan decides the length
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", "/v1/completions", json=body, timeout=None) as response,
        ):
            if response.is_error:
                await response.aread()
                is_refused = response.status_code == httpx.codes.TOO_MANY_REQUESTS
                outcome = "refused" if is_refused else "failed"
                error = f"{response.status_code}: {response.text[:300]}"
            else:
                async for event in events(response):
                    if any(choice.get("text") for choice in event.get("choices", ())):
                        token_ats.append(time.monotonic())
                    usage = event.get("usage") or usage
    except TimeoutError:
        outcome, error = "timeout", f"no end within {timeout_s:g} s"
    except (httpx.HTTPError, StreamError) as problem:
        outcome, error = "failed", f"{type(problem).__name__}: {problem}"
    return ClientRecord(
        planned_at=planned_at,
        sent_at=sent_at,
        token_ats=tuple(token_ats),
        finished_at=time.monotonic(),
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        outcome=outcome,
        error=error,
    )


async def events(response: httpx.Response) -> AsyncIterator[dict]:  # type: ignore[type-arg]
    """The server-sent events of an OpenAI stream, until `[DONE]`."""
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            event = json.loads(data)
            if "error" in event:
                raise StreamError(event["error"].get("message", data))
            yield event
    raise StreamError("the stream ended without [DONE]")
