"""The schema -> the tables of docs/crd.md."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic.alias_generators import to_camel

from paceline_api.inference_service import Spec
from paceline_api.part import changes
from paceline_api.schema import resource_schema

_ON_CHANGE: Final = {
    ".".join(to_camel(name) for name in path): said.value for path, said in changes(Spec)
}


def tables() -> dict[str, str]:
    """Return each table by the name in its markers."""
    schema = resource_schema()["properties"]
    return {
        "spec": _table(schema["spec"], with_default=True),
        "rules": _rules(resource_schema()),
        "status": _table(schema["status"], with_default=False),
    }


def _table(schema: dict[str, Any], *, with_default: bool) -> str:
    rows = ["| Field | Type | Meaning |", "|---|---|---|"]
    if with_default:
        rows = ["| Field | Type | Default | Change | Meaning |", "|---|---|---|---|---|"]
    for path, node in _leaves(schema, ""):
        meaning = node.get("description", "").replace("|", "\\|")
        cells = [f"`{path}`", _kind(node)]
        if with_default:
            default = "" if "default" not in node else f"`{json.dumps(node['default'])}`"
            cells += [default, _change(path)]
        rows.append(f"| {' | '.join([*cells, meaning])} |")
    return "\n".join(rows)


def _leaves(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, node in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if "properties" in node:
            yield from _leaves(node, below)
        elif "properties" in node.get("items", {}):
            yield f"{below}[]", node
            yield from _leaves(node["items"], f"{below}[]")
        else:
            yield below, node


def _kind(node: dict[str, Any]) -> str:
    if "enum" in node:
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(node.get("type", "object"))
    if "minimum" in node and "maximum" in node:
        return f"{kind}, {node['minimum']} to {node['maximum']}"
    return "map" if "additionalProperties" in node else kind


def _change(path: str) -> str:
    """Tell what a change of the field does: as it says itself, or a field above it."""
    return next(
        said
        for above, said in _ON_CHANGE.items()
        if path == above or path.startswith((f"{above}.", f"{above}[]"))
    )


def _rules(schema: dict[str, Any], path: str = "") -> str:
    return "\n".join(
        f"* `{(where + rule.get('fieldPath', '')).lstrip('.') or 'metadata.name'}`:"
        f" {rule['message']}"
        for where, rule in _all_rules(schema, path)
    )


def _all_rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, str]]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, node in schema.get("properties", {}).items():
        yield from _all_rules(node, f"{path}.{name}")
    if "items" in schema:
        yield from _all_rules(schema["items"], f"{path}[]")
