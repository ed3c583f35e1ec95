"""LangChain's `ChatOpenAI`: chats and responses, whole, streamed, with tools and with a type."""

from typing import Any

import pytest
from pydantic import BaseModel

from clients.conftest import Served

langchain: Any = pytest.importorskip("langchain_openai")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


class City(BaseModel):
    """A city."""

    name: str


def chat(served: Served, **more: Any) -> Any:
    asked = {"model": served.model, "base_url": f"{served.url}/v1", "api_key": "none"}
    return langchain.ChatOpenAI(**{**asked, "temperature": 0, "max_tokens": 48, **more})


@pytest.mark.parametrize("use_responses_api", [False, True], ids=["chat", "responses"])
def test_an_answer_streams_to_what_it_is_whole(served: Served, use_responses_api: bool) -> None:
    """With the usage of both."""
    model = chat(served, use_responses_api=use_responses_api, max_tokens=16, stream_usage=True)

    whole = model.invoke("Say hello.")
    pieces = list(model.stream("Say hello."))

    assert whole.text
    assert "".join(piece.text for piece in pieces) == whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    counts = [piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata]
    assert sum(counts) == whole.usage_metadata["output_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_has_the_type_that_was_asked_for(served: Served, method: str) -> None:
    """By a schema, and by a function that must be called."""
    model = chat(served).with_structured_output(City, method=method)

    assert isinstance(model.invoke("Name the capital of France."), City)


async def test_the_async_client_streams(served: Served) -> None:
    """As most servers of chains do."""
    pieces = [piece async for piece in chat(served, max_tokens=8).astream("Say hello.")]

    assert "".join(piece.text for piece in pieces)
