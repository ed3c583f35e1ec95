"""Clients that stream answers all the while: the official OpenAI client, with its own retries.

Every other client keeps its connection, and so its pod, until something breaks it; the others make
one for each request.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

import httpx
from openai import AsyncOpenAI, OpenAIError

from chaos.streams import PROMPTS, Answer, Stream

MAX_TOKENS: Final = 40
_TIMEOUT_S = 60.0
_LONGEST_PAUSE_S = 1.0
_LAST_ANSWER_S = 300.0


def answers(url: str, *, model: str) -> tuple[Answer, ...]:
    """Ask each prompt of one pod, one after the other, with no one else there.

    Raises `RuntimeError` where one of them fails.
    """
    return asyncio.run(_answers(url, model))


@contextmanager
def clients(url: str, *, model: str, count: int, seed: int) -> Iterator[list[Stream]]:
    """Let so many clients ask one prompt after the other; on leaving, wait for the last answers."""
    streams: list[Stream] = []
    is_over = Event()

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                source = random.Random(seed * 1000 + number)
                keeps = number % 2 == 0
                group.create_task(_one(url, model, source, streams, is_over, keeps=keeps))

    thread = Thread(target=lambda: asyncio.run(all_of_them()), name="clients", daemon=True)
    thread.start()
    try:
        yield streams
    finally:
        is_over.set()
        thread.join(_LAST_ANSWER_S)
        if thread.is_alive():
            raise RuntimeError(f"a client has no answer after {_LAST_ANSWER_S:g} s")


async def _answers(url: str, model: str) -> tuple[Answer, ...]:
    async with _client(url, keeps=True) as client:
        streams = [await _ask(client, model, number) for number in range(len(PROMPTS))]
    if any(stream.error for stream in streams):
        raise RuntimeError(f"the quiet service fails: {streams}")
    return tuple(Answer(stream.text, stream.finish_reason) for stream in streams)


async def _one(
    url: str,
    model: str,
    source: random.Random,
    streams: list[Stream],
    is_over: Event,
    *,
    keeps: bool,
) -> None:
    async with _client(url, keeps=keeps) as client:
        while not is_over.is_set():
            streams.append(await _ask(client, model, source.randrange(len(PROMPTS))))
            await asyncio.sleep(source.uniform(0.0, _LONGEST_PAUSE_S))


def _client(url: str, *, keeps: bool) -> AsyncOpenAI:
    limits = httpx.Limits(max_keepalive_connections=1 if keeps else 0)
    return AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        timeout=_TIMEOUT_S,
        http_client=httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S),
    )


async def _ask(client: AsyncOpenAI, model: str, prompt: int) -> Stream:
    """Stream one greedy answer. Never raises for a bad one."""
    began_at = time.monotonic()
    text = finish_reason = error = ""
    first_byte_at: float | None = None
    port: int | None = None
    num_retries = 0
    try:
        async with asyncio.timeout(3 * _TIMEOUT_S):
            stream = await client.completions.create(
                model=model,
                prompt=PROMPTS[prompt],
                max_tokens=MAX_TOKENS,
                temperature=0,
                stream=True,
            )
            first_byte_at = time.monotonic()
            port = _local_port(stream.response)
            num_retries = int(stream.response.request.headers.get("x-stainless-retry-count", "0"))
            async with stream:
                async for chunk in stream:
                    for choice in chunk.choices:
                        text += choice.text
                        # None until the last chunk, whatever the client's types say.
                        finish_reason = choice.finish_reason or finish_reason
    except (OpenAIError, httpx.HTTPError, TimeoutError) as problem:
        cause = f" ({problem.__cause__})" if problem.__cause__ else ""
        error = f"{type(problem).__name__}: {problem}{cause}"
    return Stream(
        prompt=prompt,
        began_at=began_at,
        ended_at=time.monotonic(),
        text=text,
        finish_reason=finish_reason,
        error=error,
        first_byte_at=first_byte_at,
        port=port,
        num_retries=num_retries,
    )


def _local_port(response: httpx.Response) -> int:
    """Return the number by which the node's connection table knows this connection."""
    address: Sequence[int] = response.extensions["network_stream"].get_extra_info("client_addr")
    return int(address[1])
