"""`paceline chat` streams an answer, and tells what went wrong in a sentence."""

import json

import httpx
import pytest

from paceline_cli.chat.conversation import ChatError, served_model, stream_answer


def client_of(response: httpx.Response | Exception) -> httpx.Client:
    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server:1")


def streamed(*events: object) -> httpx.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


def delta(**fields: str) -> dict[str, object]:
    return {"choices": [{"delta": fields}]}


def ask(response: httpx.Response | Exception) -> list[str]:
    with client_of(response) as client:
        messages = [{"role": "user", "content": "hello"}]
        return list(stream_answer(client, "m", messages, max_tokens=8, temperature=0.0))


def test_the_answer_comes_in_pieces() -> None:
    """As the tokens come; the role and the usage are no text."""
    pieces = ask(
        streamed(
            delta(role="assistant"), delta(content="Hel"), delta(content="lo"), {"choices": []}
        )
    )

    assert "".join(pieces) == "Hello"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "too long"}}), "400: too long"),
        (httpx.Response(502, text="<html>"), "502: <html>"),
        (streamed(delta(content="a"), {"error": {"message": "engine died"}}), "engine died"),
        (httpx.ConnectError("refused"), "http://server:1 cannot be reached: refused"),
    ],
    ids=["refused", "not ours", "mid-stream", "nobody there"],
)
def test_what_went_wrong_is_a_sentence(response: httpx.Response | Exception, words: str) -> None:
    """A person reads it, not a program."""
    with pytest.raises(ChatError, match=words):
        ask(response)


def test_the_served_model_is_asked_of_the_server() -> None:
    """Nobody wants to type it."""
    with client_of(httpx.Response(200, json={"data": [{"id": "quickstart"}]})) as client:
        assert served_model(client) == "quickstart"
