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


HOSTILE = {
    "a loop in a loop": (
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    ),
    "a long range": "{% for a in range(10**9) %}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "a recursive loop": (
        "{% for a in [[1, 2]] recursive %}{{ loop([[1], [2], [a]]) }}{% endfor %}"
    ),
    "a long text": "{{ 'a' * 10**12 }}",
    "a long list": "{{ [0] * 10**12 }}",
    "a large power": "{{ 9 ** 9 ** 9 }}",
    "nothing divided": "{{ 1 // 0 }}",
    "the class of a text": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the globals of a function": "{{ raise_exception.__globals__.keys() }}",
    "a changed message": "{{ messages.append({}) }}",
    "another's format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "a class by a filter": "{{ messages | map(attribute='__class__') | list | first + 1 }}",
    "a loop that skips all": (
        "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}"
    ),
    "much in each step": "{% for a in range(100000) %}{{ range(100000) | join }}{% endfor %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_and_soon(name: str) -> None:
    """It belongs to the model's author: it reaches nothing, and one rendering is bounded."""
    template = ChatTemplate(HOSTILE[name], {})

    with pytest.raises(InvalidRequest, match="chat template refuses"):
        template.render([{"role": "user", "content": "Hi"}])


def test_an_honest_template_of_many_messages_stays_within_the_bounds() -> None:
    """Loops in loops over all messages that a request may have, and a macro for each."""
    source = (
        "{% macro say(m) %}{{ m.role }}: {{ m.content }}{% endmacro %}"
        "{% for m in messages %}{% for word in [1, 2, 3] %}{% endfor %}{{ say(m) }}\n{% endfor %}"
    )
    messages = [{"role": "user", "content": "Hi"}] * 4096

    assert ChatTemplate(source, {}).render(messages) == "user: Hi\n" * 4096
