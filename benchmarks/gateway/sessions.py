"""Sessions of several turns that come as they come: planned before, whatever the answers take.

Each turn's prompt is the one before it and more, as a chat's history grows.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import httpx

from gateway.policies import SESSION_HEADER
from overload.asking import MODEL

_WORDS: Final = ("sea", "hill", "lamp", "road", "tree", "wind", "stone", "bread", "glass", "door")
_FIRST_WORDS: Final = 80
_MORE_WORDS: Final = 20
TURNS: Final = 4
_BETWEEN_TURNS_S: Final = 3.0
_OUTPUT_TOKENS: Final = 8
_REFUSED_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, `at_s` seconds after the beginning."""

    at_s: float
    session: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one; `ttft_s` is None where no token came."""

    at_s: float
    status: int
    ttft_s: float | None


def plan(seed: int, name: str, seconds: float, sessions_per_s: float) -> list[Turn]:
    """Draw sessions as a Poisson process; `name` makes the prompts unlike those of others."""
    source = random.Random(seed)
    turns: list[Turn] = []
    began_s = source.expovariate(sessions_per_s)
    while began_s < seconds:
        turns += _session(source, f"{name} {len(turns)}", began_s)
        began_s += source.expovariate(sessions_per_s)
    return sorted((turn for turn in turns if turn.at_s < seconds), key=lambda turn: turn.at_s)


def _session(source: random.Random, session: str, began_s: float) -> Iterator[Turn]:
    prompt = f"{session}: {_text(source, _FIRST_WORDS)}"
    for number in range(TURNS):
        yield Turn(began_s + number * _BETWEEN_TURNS_S, session, prompt)
        prompt += f" {_text(source, _MORE_WORDS)}"


async def capacity_rps(url: str, *, at_once: int, seconds: float) -> float:
    """Keep so many sessions busy without a pause; return the turns served a second.

    Who is refused comes again after a moment, as the server would not have kept its target.
    """
    ends: list[float] = []
    end_at = time.monotonic() + seconds
    source = random.Random(0)

    async def work(client: httpx.AsyncClient, worker: int) -> None:
        session = 0
        while time.monotonic() < end_at:
            began_at, session = time.monotonic(), session + 1
            for turn in _session(source, f"load test {worker} {session}", 0.0):
                asked = await _ask(client, replace(turn, at_s=0.0), began_at)
                if asked.status == httpx.codes.OK:
                    ends.append(time.monotonic())
                else:
                    await asyncio.sleep(_REFUSED_S)

    async with httpx.AsyncClient(base_url=url, timeout=120.0) as client:
        await asyncio.gather(*(work(client, number) for number in range(at_once)))
    return sum(each <= end_at for each in ends) / seconds


async def play(url: str, turns: Sequence[Turn]) -> list[Asked]:
    """Send each at its time; return what became of them, in their order."""
    began_at = time.monotonic()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:
        return await asyncio.gather(*(_ask(client, turn, began_at) for turn in turns))


async def _ask(client: httpx.AsyncClient, turn: Turn, began_at: float) -> Asked:
    await asyncio.sleep(began_at + turn.at_s - time.monotonic())
    sent_at = time.monotonic()
    body = {
        "model": MODEL,
        "prompt": turn.prompt,
        "max_tokens": _OUTPUT_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {SESSION_HEADER: turn.session}
    ttft_s: float | None = None
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if ttft_s is None and line.startswith("data: {"):
                ttft_s = time.monotonic() - sent_at
    return Asked(turn.at_s, answer.status_code, ttft_s if answer.is_success else None)


def _text(source: random.Random, num_words: int) -> str:
    return " ".join(source.choices(_WORDS, k=num_words))
