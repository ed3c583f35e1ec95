"""Validates a manifest without an API server: same schema, defaults, CEL rules and messages.

Part of local mode: `jsonschema` and `cel` are not in the operator's image.
"""

import operator
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import cel
from jsonschema import Draft202012Validator

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService
from paceline_api.schema import resource_schema
from paceline_api.units import amount

Schema = dict[str, Any]


class InvalidManifestError(ValueError):
    """The manifest is refused; the message names each field and its rule."""


def validate(manifest: dict[str, Any]) -> InferenceService:
    """Check one manifest as the API server would, and return it with its defaults."""
    _check_kind(manifest)
    schema = _schema()
    manifest = deepcopy(manifest)
    _fill_defaults(manifest, schema)
    problems = [
        *_unknown_fields(
            manifest["spec"] if _is_object(manifest.get("spec")) else {}, _spec(schema)
        ),
        *_schema_problems(manifest, schema),
        *_twins(manifest, schema, ""),
    ]
    # A rule fails on fields of the wrong type: like the API server, ask well-formed objects only.
    problems = problems or [*_broken_rules(manifest, schema, "")]
    if problems:
        name = manifest.get("metadata", {}).get("name", "")
        raise InvalidManifestError(f'{KIND}.{GROUP} "{name}" is invalid: {"; ".join(problems)}')
    return InferenceService.read(manifest)


def _check_kind(manifest: dict[str, Any]) -> None:
    wanted = (f"{GROUP}/{VERSION}", KIND)
    seen = (manifest.get("apiVersion"), manifest.get("kind"))
    if seen != wanted:
        raise InvalidManifestError(
            f"apiVersion, kind: must be {wanted[0]}, {wanted[1]}; got {seen[0]}, {seen[1]}"
        )
    if not _is_object(manifest.get("metadata")) or not manifest["metadata"].get("name"):
        raise InvalidManifestError("metadata.name: Required value")


@cache
def _schema() -> Schema:
    return resource_schema()


def _spec(schema: Schema) -> Schema:
    spec: Schema = schema["properties"]["spec"]
    return spec


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _fill_defaults(value: Any, schema: Schema) -> None:
    """Fill in defaults from the outside in, so that `{}` brings its inner defaults."""
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if "default" in inner and name not in value:
                value[name] = deepcopy(inner["default"])
            if name in value:
                _fill_defaults(value[name], inner)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _fill_defaults(item, schema["items"])


def _unknown_fields(value: Any, schema: Schema, path: str = "spec") -> Iterator[str]:
    if isinstance(value, dict) and "properties" in schema:
        for name, inner in value.items():
            if name not in schema["properties"]:
                yield f'unknown field "{path}.{name}"'
            else:
                yield from _unknown_fields(inner, schema["properties"][name], f"{path}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown_fields(item, schema["items"], f"{path}[{index}]")


def _schema_problems(manifest: dict[str, Any], schema: Schema) -> Iterator[str]:
    for error in Draft202012Validator(schema).iter_errors(manifest):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
        ).lstrip(".")
        if error.validator == "required":
            missing = error.message.split("'")[1]  # "'uri' is a required property"
            yield f"{path}.{missing}".lstrip(".") + ": Required value"
        else:
            yield f"{path}: Invalid value: {error.message}"


def _twins(value: Any, schema: Schema, path: str) -> Iterator[str]:
    """Find duplicates: entries of a map list with the same keys, and equal items of a set."""
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _twins(value[name], inner, f"{path}.{name}")
    elif isinstance(value, list) and schema.get("x-kubernetes-list-type") in {"map", "set"}:
        keys = schema.get("x-kubernetes-list-map-keys")
        seen = []
        for index, item in enumerate(value):
            named = {key: item.get(key) for key in keys} if keys and _is_object(item) else item
            if named in seen:
                yield f"{path}[{index}]: Duplicate value: {named}".lstrip(".")
            seen.append(named)


def _broken_rules(value: Any, schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if not _compiled(rule["rule"]).execute(_context(value)):
            verdict = (
                "Required value" if rule["reason"] == "FieldValueRequired" else "Invalid value"
            )
            field = f"{path}{rule.get('fieldPath', '')}".lstrip(".") or "<root>"
            yield f"{field}: {verdict}: {rule['message']}"
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _broken_rules(value[name], inner, f"{path}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _broken_rules(item, schema["items"], f"{path}[{index}]")


def _context(value: Any) -> cel.Context:
    """Name the part that a rule speaks of, and what the API server adds to CEL."""
    context = cel.Context()
    context.add_variable("self", value)
    context.add_function("quantity", amount)
    context.add_function("isLessThan", operator.lt)
    return context


@cache
def _compiled(expression: str) -> cel.Program:
    return cel.compile(expression)
