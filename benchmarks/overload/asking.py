"""One streamed request over one connection, by hand: thousands must cost their client little.

The answer is taken apart only as far as it must be: status, chunks, events, the text in them.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from chaos.streams import PROMPTS, Answer

MAX_TOKENS: Final = 32
MODEL: Final = "overload"
_LIMIT = 4 * 1024 * 1024
_OK, _TOO_MANY, _UNAVAILABLE = 200, 429, 503


class Outcome(StrEnum):
    """How a request is counted: as exactly one of these."""

    WHOLE = "whole"
    REFUSED = "refused"
    """429 with a time to come back, before any text."""
    UNAVAILABLE = "unavailable"
    """503 before any text, or no connection."""
    CUT = "cut"
    """The beginning of the right text, then an error event or the connection's end."""
    FAILED = "failed"
    """Any other answer."""
    MIXED = "mixed"
    """Text that is not the right one: lost, doubled, or somebody else's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as its client saw it; times by its monotonic clock."""

    prompt: int
    began_at: float
    ended_at: float
    status: int = 0
    """0: no answer came."""
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    token_ats: tuple[float, ...] = ()

    @property
    def is_answered(self) -> bool:
        """Whether the stream came to its end."""
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        """From its start to its first text; None where none came."""
        return self.token_ats[0] - self.began_at if self.token_ats else None

    def outcome(self, expected: Answer) -> Outcome:
        """Judge it by what its prompt gave on the quiet service."""
        if not expected.text.startswith(self.text):
            return Outcome.MIXED
        if self.status == _OK and not self.error:
            told = (self.text, self.finish_reason)
            is_whole = told == (expected.text, expected.finish_reason)
            return Outcome.WHOLE if is_whole else Outcome.MIXED
        if self.status == _TOO_MANY:
            return Outcome.REFUSED
        if self.status == _UNAVAILABLE or (not self.status and not self.text):
            return Outcome.UNAVAILABLE
        return Outcome.CUT if self.status == _OK else Outcome.FAILED


def request_bytes(prompt: int, *, path: str = "/v1/completions", body: object = None) -> bytes:
    """Return the whole request for a greedy stream, or for another body."""
    asked = {
        "model": MODEL,
        "prompt": PROMPTS[prompt],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    content = json.dumps(asked if body is None else body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: overload\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def ask(port: int, prompt: int, *, timeout_s: float = 120.0) -> Asked:
    """Stream one answer. Never raises for a bad one."""
    seen = _Seen(prompt, time.monotonic())
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LIMIT)
            try:
                writer.write(request_bytes(prompt))
                await seen.read(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as problem:
        seen.error = f"{type(problem).__name__}: {problem}"
    return seen.asked()


@dataclass(slots=True)
class _Seen:
    """What has been read so far."""

    prompt: int
    began_at: float
    status: int = 0
    text: str = ""
    finish_reason: str = ""
    error: str = "the stream ended without [DONE]"
    token_ats: tuple[float, ...] = ()

    async def read(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        self.status = int(head.split(" ", 2)[1])
        if self.status != _OK or "chunked" not in head:
            self.error = (await reader.read(2000)).decode(errors="replace")
            return
        async for line in _lines(reader):
            if line == b"data: [DONE]":
                self.error = ""
                return
            if line.startswith(b"data: "):
                self._take(json.loads(line[6:]))

    def _take(self, event: dict) -> None:  # type: ignore[type-arg] # JSON
        if "error" in event:
            raise ValueError(event["error"].get("message", event))
        for choice in event["choices"]:
            if choice["text"]:
                self.text += choice["text"]
                self.token_ats = (*self.token_ats, time.monotonic())
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def asked(self) -> Asked:
        return Asked(
            self.prompt,
            self.began_at,
            time.monotonic(),
            self.status,
            self.text,
            self.finish_reason,
            self.error,
            self.token_ats,
        )


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a chunked body as they come."""
    rest = b""
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        *lines, rest = (rest + chunk[:-2]).split(b"\n")
        for line in lines:
            yield line


async def keep_asking(
    port: int, count: int, is_over: Callable[[], bool], *, pause_s: float = 0.0
) -> list[Asked]:
    """Let so many clients ask one prompt after the other."""
    asked: list[Asked] = []

    async def one(first: int) -> None:
        number = first
        while not is_over():
            asked.append(await ask(port, number % len(PROMPTS)))
            number += 1
            # Who is refused comes back later, as any client does.
            await asyncio.sleep(pause_s if asked[-1].status == _OK else max(pause_s, 0.2))

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return asked
