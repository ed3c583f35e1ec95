"""Clients that nobody wants: they vanish, read slowly, send half, or ask for what costs most.

`python -m overload.misbehaving PORT SECONDS COUNT SEED` attacks from a process of its own, so that
honest clients do not wait for what attackers cost themselves.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from chaos.streams import PROMPTS
from overload.asking import MODEL, request_bytes

Stranger = Callable[[int, random.Random], Coroutine[Any, Any, None]]


async def vanishes(port: int, source: random.Random) -> None:
    """Leave in the middle of the answer, politely or by a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(source.randrange(len(PROMPTS))))
    await reader.read(source.randrange(1, 3000))
    if source.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


async def reads_slowly(port: int, source: random.Random) -> None:
    """Take a few bytes every tenth of a second, for some seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64)
    writer.write(request_bytes(source.randrange(len(PROMPTS))))
    for _ in range(30):
        if not await reader.read(32):
            break
        await asyncio.sleep(0.1)
    writer.close()


async def sends_half(port: int, source: random.Random) -> None:
    """Send a part of a request, wait, and leave."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    whole = request_bytes(source.randrange(len(PROMPTS)))
    writer.write(whole[: source.randrange(len(whole))])
    await asyncio.sleep(source.uniform(0.0, 3.0))
    writer.close()


STRANGERS: Final[tuple[Stranger, ...]] = (vanishes, reads_slowly, sends_half)
_COMPLETION: Final = {"model": MODEL, "max_tokens": 8}
_ATTACKS: Final[tuple[tuple[str, object], ...]] = (
    ("/v1/completions", {**_COMPLETION, "prompt": "word " * 200_000}),
    ("/v1/completions", {**_COMPLETION, "prompt": "Hi", "n": 10**9}),
    ("/v1/completions", {**_COMPLETION, "prompt": ["Hi"] * 100_000}),
    (
        "/v1/completions",
        {**_COMPLETION, "prompt": "Hi", "guided_json": {"pattern": " " * 40_000 + "x"}},
    ),
    ("/v1/completions", {**_COMPLETION, "prompt": "Hi", "guided_regex": "(a?){500}a{500}"}),
    ("/v1/completions", {**_COMPLETION, "prompt": "Hi", "temperature": 1e308}),
    ("/v1/completions", {**_COMPLETION, "prompt": "Hi", "stop": ["\ud800" * 10_000]}),
    ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "x" * 10**6, "content": 1}]}),
    (
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$defs": []}}}],
            "tool_choice": "required",
        },
    ),
    ("/v1/score", {"model": MODEL, "text_1": "word " * 13_000, "text_2": ["word"] * 1000}),
)


async def attack(port: int, source: random.Random) -> int:
    """Ask for what costs much or is wrong; return the status, 0 where no answer came."""
    pick = source.randrange(len(_ATTACKS) + 3)
    if pick < len(_ATTACKS):
        path, body = _ATTACKS[pick]
        sent = request_bytes(0, path=path, body=body)
    else:
        content = (b"[" * 500_000, b'{"prompt": "\xff\xfe"}', json.dumps("x" * 10**6).encode())[
            pick - len(_ATTACKS)
        ]
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: overload\r\nconnection: close\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        sent = head.encode() + content
    try:
        async with asyncio.timeout(60.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(sent)
                head_line = await reader.readline()
                while await reader.read(65536):
                    pass
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0
    return int(head_line.split(b" ")[1]) if head_line else 0


async def strangers(port: int, count: int, is_over: Callable[[], bool], *, seed: int) -> int:
    """Let so many of each kind come again and again; return how many came."""
    came = 0

    async def one(kind: Stranger, source: random.Random) -> None:
        nonlocal came
        while not is_over():
            with contextlib.suppress(OSError):
                await kind(port, source)
            came += 1

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            for kind in STRANGERS:
                group.create_task(one(kind, random.Random(seed + number)))
    return came


async def attackers(port: int, count: int, seconds: float, *, seed: int) -> list[int]:
    """Let so many attack from a process of their own; return the statuses."""
    arguments = (str(port), str(seconds), str(count), str(seed))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "overload.misbehaving", *arguments, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    statuses: list[int] = json.loads(printed)
    return statuses


async def _attack_for(port: int, seconds: float, count: int, seed: int) -> list[int]:
    """Attack all the while, each a few times a second."""
    statuses: list[int] = []
    end = time.monotonic() + seconds

    async def one(source: random.Random) -> None:
        while time.monotonic() < end:
            statuses.append(await attack(port, source))
            await asyncio.sleep(source.uniform(0.0, 1.0))

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(random.Random(seed + number)))
    return statuses


if __name__ == "__main__":
    _port, _seconds, _count, _seed = sys.argv[1:]
    found = asyncio.run(_attack_for(int(_port), float(_seconds), int(_count), int(_seed)))
    print(json.dumps(found))
