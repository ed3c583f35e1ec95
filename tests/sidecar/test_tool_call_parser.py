"""Calls are told from what is said, in every family's way and however the text is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_sidecar.text.tool_call_parser import ParsedCall, ToolStyle, parser_of, style_of

NAMES = frozenset({"look", "add"})
LOOK = ParsedCall("look", '{"at": "<tool_call> é"}')
ADD = ParsedCall("add", '{"a": 1, "b": [2]}')
LOOK_JSON = '{"name": "look", "arguments": {"at": "<tool_call> é"}}'
ADD_JSON = '{"name": "add", "parameters": {"a": 1, "b": [2]}}'

CASES: list[tuple[ToolStyle, str, str, tuple[ParsedCall, ...]]] = [
    ("hermes", "Just words < and [", "Just words < and [", ()),
    ("hermes", f"Wait.\n<tool_call>\n{ADD_JSON}\n</tool_call>", "Wait.\n", (ADD,)),
    (
        "hermes",
        f"<tool_call>{ADD_JSON}</tool_call>\n<tool_call>{LOOK_JSON}</tool_call>",
        "",
        (ADD, LOOK),
    ),
    ("hermes", f"<tool_call>{ADD_JSON}", "", (ADD,)),
    ("hermes", "<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", ()),
    (
        "hermes",
        '<tool_call>{"name": "rm"}</tool_call>',
        '<tool_call>{"name": "rm"}</tool_call>',
        (),
    ),
    ("hermes", '<tool_call>{"name": "ad', '<tool_call>{"name": "ad', ()),
    ("hermes", "ends with <tool_", "ends with <tool_", ()),
    ("mistral", "Just [words].", "Just [words].", ()),
    ("mistral", f"[TOOL_CALLS][{LOOK_JSON}, {ADD_JSON}]", "", (LOOK, ADD)),
    ("mistral", f"[TOOL_CALLS] [{ADD_JSON}]", "", (ADD,)),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": [2]}', "", (ADD,)),
    (
        "mistral",
        'So: [TOOL_CALLS]add{"a": 1, "b": [2]}[TOOL_CALLS]look{"at": "<tool_call> é"}',
        "So: ",
        (ADD, LOOK),
    ),
    ("mistral", "[TOOL_CALLS] what?", "[TOOL_CALLS] what?", ()),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", ()),
    ("llama", "The answer is {4}.", "The answer is {4}.", ()),
    ("llama", ADD_JSON, "", (ADD,)),
    ("llama", f" <|python_tag|>{LOOK_JSON}; {ADD_JSON}", "", (LOOK, ADD)),
    ("llama", '{"answer": 4}', '{"answer": 4}', ()),
    ("llama", f"{ADD_JSON} and more", f"{ADD_JSON} and more", ()),
    ("llama", '{"name": "add", "parameters": "no"}', '{"name": "add", "parameters": "no"}', ()),
    ("llama", "  ", "  ", ()),
]


@pytest.mark.parametrize(("style", "text", "said", "calls"), CASES, ids=lambda v: str(v)[:40])
@given(data=st.data())
def test_calls_and_what_is_said(
    style: ToolStyle, text: str, said: str, calls: tuple[ParsedCall, ...], data: st.DataObject
) -> None:
    """The same, in one piece or in any."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parser = parser_of(style, NAMES)

    read = [*map(parser.push, pieces), parser.finish()]

    assert "".join(each.content for each in read).strip() == said.strip()
    assert tuple(call for each in read for call in each.calls) == calls
    assert all(isinstance(json.loads(call.arguments), dict) for each in read for call in each.calls)


@given(
    parts=st.lists(st.sampled_from([*'<tol_ca>/{}[]":, nrgTOLCA|', "<tool_call>", "[TOOL_CALLS]"]))
)
@pytest.mark.parametrize("style", ["hermes", "mistral", "llama"])
def test_text_without_calls_is_said_whole(style: ToolStyle, parts: list[str]) -> None:
    """Nothing is lost, whatever it looks like."""
    parser = parser_of(style, NAMES)

    read = [*map(parser.push, parts), parser.finish()]

    assert not any(each.calls for each in read)
    assert "".join("".join(each.content for each in read).split()) == "".join(
        "".join(parts).split()
    )


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{{ tools }} <tool_call>", "hermes"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ("{{ tools }} <|python_tag|>", "llama"),
        ("{{ tools }}", "llama"),
    ],
)
def test_the_template_tells_the_family(template: str, style: ToolStyle) -> None:
    """No setting to forget."""
    assert style_of(template) == style
