"""Calls are told from what is said, in every family's way and however the text is cut."""

import json
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_sidecar.text.call_reader import CallPiece
from paceline_sidecar.text.tool_call_parser import (
    ListParser,
    ParsedText,
    ToolCallParser,
    ToolStyle,
    parser_of,
    style_of,
)

NAMES = frozenset({"look", "add"})
LOOK = ("look", '{"at": "<tool_call> é"}')
ADD = ("add", '{"a": 1, "b": [2]}')
LOOK_JSON = '{"name": "look", "arguments": {"at": "<tool_call> é"}}'
ADD_JSON = '{"name": "add", "parameters": {"a": 1, "b": [2]}}'

Call = tuple[str, str]
"""A function and its arguments."""

CASES: list[tuple[ToolStyle, str, str, tuple[Call, ...]]] = [
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
    ("hermes", f"<tool_call>{ADD_JSON} and more", "and more", (ADD,)),
    ("hermes", f'<tool_call>{ADD_JSON[:-1]}, "id": {{}}}}</tool_call>!', "!", (ADD,)),
    ("hermes", f'<tool_call>{{"arguments": {ADD[1]}, "name": "add"}}</tool_call>', "", (ADD,)),
    (
        "hermes",
        '<tool_call>{"name": "look", "arguments": {"at": "a\n}\\\\\\""}}</tool_call>',
        "",
        (("look", '{"at": "a\\u000a}\\\\\\""}'),),
    ),
    (
        "hermes",
        f'<tool_call>{{"name": "add", "arguments": {{"a": 1</tool_call><tool_call>{LOOK_JSON}',
        "",
        (("add", '{"a": 1'), LOOK),
    ),
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
    (
        "mistral",
        f'[TOOL_CALLS] [{LOOK_JSON}, {{"arguments": {ADD[1]}, "name": "add"}}]',
        "",
        (LOOK, ADD),
    ),
    ("llama", "The answer is {4}.", "The answer is {4}.", ()),
    ("llama", ADD_JSON, "", (ADD,)),
    ("llama", f" <|python_tag|>{LOOK_JSON}; {ADD_JSON}", "", (LOOK, ADD)),
    ("llama", '{"answer": 4}', '{"answer": 4}', ()),
    ("llama", f"{ADD_JSON} and more", "and more", (ADD,)),
    (
        "llama",
        ADD_JSON.replace("add", "rm") + ADD_JSON,
        ADD_JSON.replace("add", "rm") + ADD_JSON,
        (),
    ),
    ("llama", '{"name": "add", "parameters": "{}"}', "", (("add", "{}"),)),
    ("llama", '{"name": "add", "parameters": "no"}', '{"name": "add", "parameters": "no"}', ()),
    ("llama", "  ", "  ", ()),
]


@pytest.mark.parametrize(("style", "text", "said", "calls"), CASES, ids=lambda v: str(v)[:40])
@settings(deadline=None)
@given(data=st.data())
def test_calls_and_what_is_said(
    style: ToolStyle, text: str, said: str, calls: tuple[Call, ...], data: st.DataObject
) -> None:
    """The same, in one piece or in any."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    read = parsed(parser_of(style, NAMES), pieces)

    assert "".join(each.content for each in read).strip() == said.strip()
    assert calls_of(read) == calls


@pytest.mark.parametrize("style", ["hermes", "mistral", "llama", "forced"])
@settings(deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=5,
        ),
        max_size=4,
    ),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_arguments_come_with_the_text_that_holds_them(
    style: ToolStyle | Literal["forced"],
    arguments: dict[str, Any],
    indent: int | None,
    ascii_only: bool,
) -> None:
    """Each character is passed on at once, from the first brace to the last."""
    written = json.dumps(arguments, indent=indent, ensure_ascii=ascii_only)
    call = f'{{"name": "look", "arguments": {written}}}'
    around = {
        "hermes": ("Text <tool_call>", "</tool_call>"),
        "mistral": ("[TOOL_CALLS][", "]"),
        "llama": ("", ""),
        "forced": ("[", "]"),
    }
    before, after = around[style]
    parser = ListParser(None, NAMES, is_open=True) if style == "forced" else parser_of(style, NAMES)

    read = parsed(parser, f"{before}{call}, {call}{after}" if style == "forced" else before + call)
    first = next(place for place, each in enumerate(read) if each.calls)

    (passed, *others) = calls_of(read)
    assert passed == ("look", written)
    assert others == ([passed] if style == "forced" else [])
    assert first == len(before) + call.index(written)
    assert all(len(each.calls) == 1 for each in read[first : first + len(written)])


def parsed(parser: ToolCallParser, pieces: Iterable[str]) -> list[ParsedText]:
    """Return what each piece gave, and the end."""
    return [*map(parser.push, pieces), parser.finish()]


def calls_of(read: list[ParsedText]) -> tuple[Call, ...]:
    """Return the calls, each of its pieces."""
    calls: list[list[CallPiece]] = []
    for piece in (piece for each in read for piece in each.calls):
        if piece.name is not None:
            calls.append([])
        calls[-1].append(piece)
    return tuple(
        (str(pieces[0].name), "".join(piece.arguments for piece in pieces)) for pieces in calls
    )


@settings(deadline=None)
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
