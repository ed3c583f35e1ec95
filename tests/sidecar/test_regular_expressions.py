"""No regular expression of the sidecar takes longer than linear time on what a client sends."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import paceline_sidecar

# The parser that `re` itself uses: there is no public way to look into an expression.
_constants, _parser = import_module("re._constants"), import_module("re._parser")

_FOLDER = Path(paceline_sidecar.__file__).parent
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
_SCANNING = {"search", "findall", "finditer", "sub", "subn", "split"}


def _calls() -> list[tuple[str, str, str]]:
    """Every call of a function of `re`: the file and line, the function, the expression."""
    found = []
    for file in _FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=function),
                    args=[ast.Constant(value=str(expression)), *_],
                ):
                    where = f"{file.relative_to(_FOLDER)}:{node.lineno}"
                    found.append((where, function, expression))
    return found


def _unbounded(parsed: Any) -> int:
    """Count the repeats without an end, however deep."""
    count = 0
    for kind, argument in parsed:
        if kind in _REPEATS and argument[1] == _constants.MAXREPEAT:
            count += 1
        for part in argument if isinstance(argument, tuple) else (argument,):
            for each in part if isinstance(part, list) else (part,):
                count += _unbounded(each) if isinstance(each, _parser.SubPattern) else 0
    return count


@pytest.mark.parametrize(("where", "function", "expression"), _calls(), ids=str)
def test_an_expression_has_at_most_one_repeat_without_an_end(
    where: str, function: str, expression: str
) -> None:
    """Two of them try every way to share the text; one that may begin anywhere does as well."""
    most = 0 if function in _SCANNING else 1

    assert _unbounded(_parser.parse(expression)) <= most, f"{where}: {expression}"


def test_repeats_are_counted() -> None:
    """The expression that once stopped a pod for seconds has three."""
    assert _unbounded(_parser.parse(r'"pattern"\s*:\s*[{]?\s*("x")')) == 3
    assert _unbounded(_parser.parse(r"(a(b+|c){2,5})*")) == 2
