"""Sends a plan: each request at its time, however many are unanswered, or so many at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx

from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.record import ClientRecord, Outcome

Sink = Callable[[ClientRecord], None]
Endpoint = Literal["completions", "chat"]


class StreamError(Exception):
    """The server ended a stream with an error event."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a request is worded for the server."""

    model: str
    endpoint: Endpoint = "completions"
    ignore_eos: bool = True
    """The plan decides the length; a server that does not know `ignore_eos` may refuse it."""
    timeout_s: float = 120.0
    count_tokens: Callable[[str], int] | None = None
    """For a server that tells no usage."""

    def path(self) -> str:
        """Where it is sent."""
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"

    def body(self, said: Sequence[str], max_tokens: int) -> Mapping[str, Any]:
        """The request: `said` by user and assistant in turn."""
        common = {
            "model": self.model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | ({"ignore_eos": True} if self.ignore_eos else {})
        if self.endpoint == "completions":
            return common | {"prompt": "\n\n".join(said), "max_tokens": max_tokens}
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
        return common | {"messages": messages, "max_completion_tokens": max_tokens}


async def drive_open(
    client: httpx.AsyncClient, requests: Iterable[PlannedRequest], asking: Asking, sink: Sink
) -> None:
    """Send every request at its planned time; return when all are answered.

    `client` has the server's address as its base URL; `sink` gets each record when it is complete.
    """
    start_at = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            planned_at = start_at + request.at_s
            await asyncio.sleep(planned_at - time.monotonic())
            group.create_task(_converse(client, request, planned_at, asking, sink))


async def drive_closed(
    client: httpx.AsyncClient,
    requests: Sequence[PlannedRequest],
    asking: Asking,
    sink: Sink,
    *,
    concurrency: int,
) -> None:
    """Keep `concurrency` requests on their way, each sent when another has ended: capacity."""
    left = iter(requests)

    async def work() -> None:
        for request in left:
            await _converse(client, request, time.monotonic(), asking, sink)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


async def _converse(
    client: httpx.AsyncClient,
    request: PlannedRequest,
    planned_at: float,
    asking: Asking,
    sink: Sink,
) -> None:
    """Send a request, and what follows in its conversation while it is answered."""
    said = [request.prompt]
    record, answer = await _ask(
        client,
        said,
        planned_at,
        asking,
        max_tokens=request.max_tokens,
        cancel_after=request.cancel_after,
    )
    sink(record)
    for turn in request.turns:
        if record.outcome != "ok":
            return
        said += [answer, turn.prompt]
        planned_at = record.finished_at + turn.think_s
        await asyncio.sleep(planned_at - time.monotonic())
        record, answer = await _ask(client, said, planned_at, asking, max_tokens=turn.max_tokens)
        sink(record)


class _Stream:
    """What has come of one answer."""

    def __init__(self) -> None:
        self.token_ats: list[float] = []
        self.pieces: list[str] = []
        self.usage: Mapping[str, int] | None = None

    async def read(self, response: httpx.Response, cancel_after: int | None) -> Outcome:
        """Read to the end, or to the piece at which the client leaves."""
        async for event in events(response):
            if piece := "".join(_text(choice) for choice in event.get("choices") or ()):
                self.token_ats.append(time.monotonic())
                self.pieces.append(piece)
            self.usage = event.get("usage") or self.usage
            if cancel_after is not None and len(self.token_ats) >= cancel_after:
                return "cancelled"
        return "ok"

    def counts(self, said: Sequence[str], asking: Asking) -> tuple[int, int]:
        """Tokens of prompt and answer: the server's, the tokenizer's, or pieces of text."""
        if self.usage is not None:
            return self.usage["prompt_tokens"], self.usage["completion_tokens"]
        if asking.count_tokens is not None:
            return (
                sum(map(asking.count_tokens, said)),
                asking.count_tokens("".join(self.pieces)),
            )
        return 0, len(self.token_ats)


async def _ask(
    client: httpx.AsyncClient,
    said: Sequence[str],
    planned_at: float,
    asking: Asking,
    *,
    max_tokens: int,
    cancel_after: int | None = None,
) -> tuple[ClientRecord, str]:
    """Stream one answer and record when each piece arrived. Never raises for a bad answer."""
    sent_at = time.monotonic()
    stream = _Stream()
    outcome: Outcome = "ok"
    error = ""
    body = asking.body(said, max_tokens)
    try:
        async with (
            asyncio.timeout(asking.timeout_s),
            client.stream("POST", asking.path(), json=body, timeout=None) as response,
        ):
            if response.is_error:
                await response.aread()
                is_refused = response.status_code == httpx.codes.TOO_MANY_REQUESTS
                outcome = "refused" if is_refused else "failed"
                error = f"{response.status_code}: {response.text[:300]}"
            else:
                outcome = await stream.read(response, cancel_after)
    except TimeoutError:
        outcome, error = "timeout", f"no end within {asking.timeout_s:g} s"
    except (httpx.HTTPError, StreamError) as problem:
        outcome, error = "failed", f"{type(problem).__name__}: {problem}"
    record = ClientRecord(
        planned_at=planned_at,
        sent_at=sent_at,
        token_ats=tuple(stream.token_ats),
        finished_at=time.monotonic(),
        prompt_tokens=0,
        output_tokens=0,
        outcome=outcome,
        error=error,
    )
    # Counted after the end was noted: a tokenizer takes its time.
    prompt_tokens, output_tokens = stream.counts(said, asking)
    record = replace(record, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return record, "".join(stream.pieces)


def _text(choice: Mapping[str, Any]) -> str:
    """A completion's text, or what a chat says, thinks or calls."""
    delta = choice.get("delta") or {}
    said = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    return str(said or delta.get("reasoning") or "")


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
