"""A conversation in the terminal, streamed from `/v1/chat/completions`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import click
import httpx

from paceline_cli.errors import LocalError

Message = dict[str, str]


class ChatError(LocalError):
    """The server refused, or cannot be reached; the message says so in a sentence."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Questions of one person, and the answers of one server."""

    client: httpx.Client
    max_tokens: int
    temperature: float

    def run(self, source: TextIO) -> None:
        """Answer all that a pipe holds as one message, or converse with a terminal."""
        model = served_model(self.client)
        if not source.isatty():
            self._answer(model, [_user(source.read())])
            return
        base_url = str(self.client.base_url).rstrip("/")
        click.echo(f"{model} at {base_url}. An empty line or Ctrl-D ends.")
        messages: list[Message] = []
        while text := _next_line():
            try:
                answer = self._answer(model, [*messages, _user(text)])
            except ChatError as problem:
                click.echo(f"{problem}", err=True)
            else:
                messages += [_user(text), {"role": "assistant", "content": answer}]

    def _answer(self, model: str, messages: list[Message]) -> str:
        pieces = []
        for piece in stream_answer(
            self.client,
            model,
            messages,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        ):
            click.echo(piece, nl=False)
            pieces.append(piece)
        click.echo()
        return "".join(pieces)


def client_of(base_url: str, api_key: str | None) -> httpx.Client:
    """Open a client of a server; answers may take minutes."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=base_url, headers=headers, timeout=httpx.Timeout(300.0))


def served_model(client: httpx.Client) -> str:
    """The first model that the server offers."""
    with _explained(client):
        response = client.get("/v1/models")
        _check(response)
        return str(response.json()["data"][0]["id"])


def stream_answer(
    client: httpx.Client,
    model: str,
    messages: list[Message],
    *,
    max_tokens: int,
    temperature: float,
) -> Iterator[str]:
    """The pieces of the next answer, as they arrive."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
    }
    with (
        _explained(client),
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        if response.is_error:
            response.read()
        _check(response)
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:") or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise ChatError(str(event["error"].get("message", data)))
            for choice in event.get("choices", ()):
                yield choice.get("delta", {}).get("content") or ""


def _next_line() -> str:
    try:
        return str(click.prompt(">", default="", prompt_suffix=" ", show_default=False))
    except click.Abort:  # Ctrl-D
        return ""


def _user(text: str) -> Message:
    return {"role": "user", "content": text.strip()}


def _check(response: httpx.Response) -> None:
    if response.is_error:
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:300]
        raise ChatError(f"{response.status_code}: {message}")


class _explained:  # noqa: N801 - reads as a clause: with explained
    """Turns a transport error into a sentence."""

    def __init__(self, client: httpx.Client) -> None:
        self._url = client.base_url

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, httpx.HTTPError):
            raise ChatError(f"{self._url} cannot be reached: {problem}") from problem
