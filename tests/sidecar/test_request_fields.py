"""Fields that OpenAI and vLLM know are served as they mean it there."""

from typing import Any

import pytest

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_wire import Submit

CHAT: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def script() -> Script:
    template = "{{ messages[0].content }} {{ reasoning_effort }} {{ enable_thinking }}"
    return Script(chat_template=template)


def submitted(sidecar: Sidecar, engine: ScriptedEngine, **fields: Any) -> Submit:
    """What reaches the engine of a completion with these fields."""
    headers = fields.pop("headers", {})
    sidecar.openai.completions.create(
        model="scripted", prompt="Hi", extra_body=fields, extra_headers=headers
    )
    return engine.submitted[-1]


@pytest.mark.parametrize(
    ("fields", "lane"),
    [
        ({}, "interactive"),
        ({"priority": 0}, "interactive"),
        ({"priority": -5}, "interactive"),
        ({"priority": 1}, "batch"),
        ({"service_tier": "auto"}, "interactive"),
        ({"service_tier": "priority"}, "interactive"),
        ({"service_tier": "flex"}, "batch"),
        ({"service_tier": "flex", "headers": {"x-paceline-lane": "interactive"}}, "interactive"),
        ({"headers": {"x-paceline-lane": "batch"}}, "batch"),
    ],
    ids=str,
)
def test_what_may_wait_goes_into_the_batch_lane(
    sidecar: Sidecar, engine: ScriptedEngine, fields: dict[str, Any], lane: str
) -> None:
    """The header has the last word."""
    assert submitted(sidecar, engine, **fields).lane == lane


def test_tenants_with_salts_of_their_own_share_no_cached_prefix(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Though they call with the same key, or with none."""
    none = submitted(sidecar, engine).cache_salt
    one, two, again = (
        submitted(sidecar, engine, cache_salt=salt).cache_salt for salt in ("a", "b", "a")
    )

    assert len({none, one, two}) == 3
    assert again == one


def test_the_chat_template_gets_what_the_client_gives_it(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """`reasoning_effort` where it knows it, `chat_template_kwargs` as they are."""
    sidecar.openai.chat.completions.create(
        model="scripted",
        messages=CHAT,
        reasoning_effort="low",
        extra_body={"chat_template_kwargs": {"enable_thinking": False, "unknown": 1}},
    )

    assert byte_tokenizer().decode(engine.submitted[-1].prompt_ids) == "Hi low False"
