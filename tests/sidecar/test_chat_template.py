"""Chat templates run in a sandbox and fail as the client's mistake."""

import pytest

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.text.chat_template import (
    ChatTemplate,
    read_special_tokens,
    read_template,
)

HELLO = [{"role": "user", "content": "Hi {{ bos_token }}"}]


def test_messages_are_data_and_never_template() -> None:
    """What a user writes is not rendered again."""
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})

    assert template.render(HELLO) == "<s>Hi {{ bos_token }}"


def test_the_helpers_of_published_templates_are_there() -> None:
    """raise_exception, strftime_now, break, and trimmed blocks."""
    source = (
        "{% for message in messages %}\n"
        "{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ message.role }}\n"
        "{% endfor %}\n"
        "{{ strftime_now('%Y') | length }}"
    )

    assert ChatTemplate(source, {}).render(HELLO * 2).split() == ["user", "4"]


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ ['é'] | tojson(ensure_ascii=False) }}", '["é"]'),
        ("{{ ['é'] | tojson(ensure_ascii=True) }}", r'["\u00e9"]'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}!", "user!"),
    ],
)
def test_what_transformers_lets_templates_do_is_done(source: str, prompt: str) -> None:
    """Published templates are written for it."""
    assert ChatTemplate(source, {}).render(HELLO) == prompt


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
    ids=["raised", "missing", "type", "mutation", "escape"],
)
def test_what_a_template_refuses_is_a_bad_request(source: str) -> None:
    """Neither the sidecar nor the messages are harmed."""
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(HELLO)

    assert caught.value.param == "messages"


def test_the_files_of_different_ages_are_understood() -> None:
    """Templates by name, tokens as objects."""
    config = {
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "yes"},
        ],
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "unk_token": None,
    }

    assert read_template(config) == "yes"
    assert read_template({}) is None
    assert read_special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}
