"""Any server that speaks OpenAI's API: its address, its model, its key."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from paceline_cli.errors import BadInputError


def base_url(url: str) -> str:
    """The address without the `/v1` with which many write it."""
    return url.rstrip("/").removesuffix("/v1")


def api_key(variable: str | None) -> str | None:
    """Read the key from the environment, so that no command line shows it."""
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise BadInputError(f"--api-key-env {variable}: the variable is not set")
    return key


@asynccontextmanager
async def opened(url: str, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client that queues nothing: every request has a connection."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url(url), headers=headers, limits=limits, timeout=30.0
    ) as client:
        yield client


async def first_model(client: httpx.AsyncClient) -> str:
    """The first model that the server offers. Raises BadInputError."""
    try:
        answer = await client.get("/v1/models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as problem:
        raise BadInputError(
            f"{client.base_url} names no model ({problem}): say --model"
        ) from problem


def token_counter(name: str | None) -> Callable[[str], int] | None:
    """Count tokens by a tokenizer's file, folder or name on the hub."""
    if name is None:
        return None
    from tokenizers import Tokenizer  # noqa: PLC0415 - only where a server tells no usage

    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    try:
        tokenizer = (
            Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(name)
        )
    except Exception as problem:  # the library raises Exception itself
        raise BadInputError(f"--tokenizer {name}: {problem}") from problem
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
