"""The models, the definition and its copy in the chart are one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_api import schema
from paceline_api.inference_service import Spec

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["crds", "charts/paceline/crds"])
def test_the_definition_is_generated_from_the_models(folder: str) -> None:
    """`make crds` was run."""
    assert (ROOT / folder / schema.FILE).read_text(encoding="utf-8") == schema.text()


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from _nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from _nodes(node[key], f"{path}[]")


def _all(part: str) -> list[tuple[str, dict[str, Any]]]:
    return [*_nodes(schema.resource_schema()["properties"][part], part)]


def test_every_string_and_list_is_bounded() -> None:
    """The API server's budget for CEL counts the longest value that could come."""
    for path, node in [*_all("spec"), *_all("status")]:
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert node["x-kubernetes-list-type"] in {"map", "set", "atomic"}, path


def test_no_float_and_no_null_reaches_the_schema() -> None:
    """Custom resources hold no floats; an absent field is the only way to say nothing."""
    for path, node in [*_all("spec"), *_all("status")]:
        assert node.get("type") not in {"number", "null"}, path
        assert node.get("default", ...) is not None, path


def test_list_items_have_no_defaults() -> None:
    """A default inside an item is a difference that GitOps sees for ever."""
    for path, node in _all("spec"):
        if "[]" in path:
            assert "default" not in node, path


def test_the_defaults_are_those_of_the_models() -> None:
    """The operator reads an object the same way whether or not defaults were filled in."""
    filled = yaml.safe_load(schema.text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    defaults = {
        name: inner["default"]
        for name, inner in filled["properties"]["spec"]["properties"].items()
        if "default" in inner
    }
    model = {"uri": "builtin://x"}

    assert Spec.model_validate({"model": model} | defaults) == Spec.model_validate({"model": model})


def test_every_map_is_bounded() -> None:
    """Number of keys and length of each value; what is passed on to a pod is checked with it."""
    for path, node in [*_all("spec"), *_all("status")]:
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        elif node.get("type") == "object":
            assert "properties" in node or node.get("x-kubernetes-preserve-unknown-fields"), path
