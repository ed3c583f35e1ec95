"""Each rule and bound refuses what is beyond it, at admission, and names the field."""

from collections.abc import Iterator
from typing import Any

import pytest

from paceline_api.schema import resource_schema
from paceline_api.validate import InvalidManifestError, validate
from paceline_testing.invalid_manifests import CASES, failing
from paceline_testing.services import a_manifest

_SPEC = resource_schema()["properties"]["spec"]


def _nodes(node: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field by its path; the values of a map are its own affair."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from _nodes(inner, f"{path}.{name}")
    if "items" in node:
        yield from _nodes(node["items"], f"{path}[]")


def _refusals() -> list[str]:
    found = []
    for case in CASES:
        with pytest.raises(InvalidManifestError) as refused:
            validate(failing(case))
        found.append(str(refused.value))
    return found


def test_each_rule_has_a_manifest_that_breaks_it() -> None:
    """A rule that nothing can break, or that speaks of another field, helps nobody."""
    sentences: dict[str, list[str]] = {}
    for path, node in _nodes(_SPEC):
        for rule in node.get("x-kubernetes-validations", ()):
            # An item of a list is named by its number.
            field = path.replace("[]", "[0]") + rule.get("fieldPath", "")
            verdict = "Required" if rule["reason"] == "FieldValueRequired" else "Invalid"
            sentence = f"{field}: {verdict} value: {rule['message']}"
            # A part that stands in several places has its rules in each.
            sentences.setdefault(rule["rule"] + rule["message"], []).append(sentence)
    refusals = _refusals()

    for alternatives in sentences.values():
        assert any(sentence in text for text in refusals for sentence in alternatives), alternatives


def _wrong(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Break each bound of a field by one."""
    kind = node.get("type")
    if kind == "string" and "enum" in node:
        yield "enum", "NoneOfThem"
    elif kind == "string":
        yield "maxLength", "a" * (node["maxLength"] + 1)
        yield "type", 7
    elif kind == "integer":
        yield "minimum", node["minimum"] - 1
        yield "type", "seven"
        if "maximum" in node:
            yield "maximum", node["maximum"] + 1
    elif kind == "boolean":
        yield "type", "true"
    elif kind == "array":
        yield "maxItems", [_least(node["items"])] * (node["maxItems"] + 1)
    elif "additionalProperties" in node:
        yield "maxProperties", {f"k{i}": "v" for i in range(node["maxProperties"] + 1)}
        yield "value", {"key": 7}
    elif "x-kubernetes-int-or-string" in node:
        yield "pattern", "many"
    elif kind == "object":
        yield "type", "none"


def _least(node: dict[str, Any]) -> Any:
    """The least value that a list may hold."""
    return {"object": {}, "integer": node.get("minimum", 0), "string": "a"}[node["type"]]


def _manifest_with(path: str, value: Any) -> dict[str, Any]:
    """A manifest with this value at `spec.a.b[].c`."""
    for part in reversed(path.split(".")[1:]):
        name, listed = part.removesuffix("[]"), part.endswith("[]")
        value = {name: [value] if listed else value}
    manifest = a_manifest()
    manifest["spec"] |= value
    return manifest


_BOUNDS = [
    pytest.param(path, value, id=f"{path} {bound}")
    for path, node in _nodes(_SPEC)
    if path != "spec"
    for bound, value in _wrong(node)
]


@pytest.mark.parametrize(("path", "value"), _BOUNDS)
def test_each_bound_refuses_what_is_beyond_it(path: str, value: Any) -> None:
    """And the sentence names the field."""
    with pytest.raises(InvalidManifestError) as refused:
        validate(_manifest_with(path, value))

    assert path.replace("[]", "[0]") in str(refused.value)
