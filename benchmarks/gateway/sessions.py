"""Sessions of several turns that come as they come: planned before, whatever the answers take.

Each turn's prompt is the one before it and more, as a chat's history grows.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from gateway.policies import SESSION_HEADER
from overload.asking import MODEL

_WORDS: Final = ("sea", "hill", "lamp", "road", "tree", "wind", "stone", "bread", "glass", "door")
_FIRST_WORDS: Final = 80
_MORE_WORDS: Final = 20
_TURNS: Final = 4
_BETWEEN_TURNS_S: Final = 3.0
_OUTPUT_TOKENS: Final = 8


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
        session = f"{name} {len(turns)}"
        prompt = f"{session}: {_text(source, _FIRST_WORDS)}"
        for number in range(_TURNS):
            turns.append(Turn(began_s + number * _BETWEEN_TURNS_S, session, prompt))
            prompt += f" {_text(source, _MORE_WORDS)}"
        began_s += source.expovariate(sessions_per_s)
    return sorted((turn for turn in turns if turn.at_s < seconds), key=lambda turn: turn.at_s)


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
