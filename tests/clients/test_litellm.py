"""LiteLLM, which speaks to a server as OpenAI's, vLLM's or Anthropic's."""

import os
from typing import Any

import pytest

from clients.conftest import Served

# Its price list is not fetched for a test.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm: Any = pytest.importorskip("litellm")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_an_answer_streams_to_what_it_is_whole(served: Served, provider: str) -> None:
    """Whichever of the three APIs it takes."""
    base = served.url if provider == "anthropic" else f"{served.url}/v1"
    asked: Any = {
        "model": f"{provider}/{served.model}",
        "api_base": base,
        "api_key": "none",
        "messages": HELLO,
        "max_tokens": 16,
        "temperature": 0,
    }

    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True))

    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert whole.usage.completion_tokens > 0


def test_a_response_streams_to_what_it_is_whole(served: Served) -> None:
    """By the newer of OpenAI's APIs."""
    asked: Any = {
        "model": f"openai/{served.model}",
        "api_base": f"{served.url}/v1",
        "api_key": "none",
        "input": "Say hello.",
        "max_output_tokens": 16,
        "temperature": 0,
    }

    whole = litellm.responses(**asked)
    events = list(litellm.responses(**asked, stream=True))

    text = whole.output[0].content[0].text
    assert text
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == text
    assert events[-1].type in {"response.completed", "response.incomplete"}
