"""The base of every part of the resource, its CEL rules, and what a change of a field does."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class OnChange(Enum):
    """What a change of a field of spec does, said once, in the field's annotation."""

    HOT = "hot"
    """It reaches running pods, and nothing restarts."""
    COLD = "rolls pods"
    """The pod template changes: new pods replace the old ones."""
    NO_RESTART = "no restart"
    """It changes objects around the pods, such as the Deployment, and none of the pods."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule, as the API server and `paceline up` both evaluate it."""

    expression: str
    message: str
    field: str = ""
    """Path below the part that the error names, such as `.p99`."""
    is_required: bool = False
    """Whether breaking the rule means that a required field is missing."""

    def schema(self) -> dict[str, str]:
        """Write the rule as an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.expression, "message": self.message}
        if self.field:
            entry["fieldPath"] = self.field
        entry["reason"] = "FieldValueRequired" if self.is_required else "FieldValueInvalid"
        return entry


def between(field: str, lowest: str, highest: str) -> Rule:
    """Require that a duration lies between `lowest` and `highest`."""
    value = f"duration(self.{field})"
    return Rule(
        f"{value} >= duration('{lowest}') && {value} <= duration('{highest}')",
        f"must lie between {lowest} and {highest}",
        f".{field}",
    )


class Part(BaseModel):
    """A part of spec or status. Unknown fields are dropped, as the API server prunes them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        protected_namespaces=(),  # status.engine.modelRevision is ours
    )

    cel_rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the CEL rules to the schema."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.cel_rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in cls.cel_rules]
        return schema


def changes(
    part: type[Part], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], OnChange]]:
    """Yield the path of each field that says what a change of it does.

    Everything below such a field follows it. A part that says nothing has fields that do; any
    other field raises TypeError.
    """
    for name, field in part.model_fields.items():
        said = [mark for mark in field.metadata if isinstance(mark, OnChange)]
        if said:
            yield (*path, name), said[0]
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Part):
            yield from changes(field.annotation, (*path, name))
        else:
            raise TypeError(f"{part.__name__}.{name} does not say what a change of it does")


def listed(kind: str, *, max_items: int, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Say how server-side apply merges a list, and how long it may grow."""
    extra: dict[str, Any] = {"maxItems": max_items, "x-kubernetes-list-type": kind}
    if keys:
        extra["x-kubernetes-list-map-keys"] = list(keys)
    return extra
