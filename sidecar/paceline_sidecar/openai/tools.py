"""Tools as a chat request offers them, and the grammar of a call that it insists on."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.structured import RequestedGrammar
from paceline_wire import Grammar

MAX_TOOLS = 128
_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_DEFINITIONS = ("$defs", "definitions")

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(BodyPart):
    """`tools[].function`."""

    model_config = ConfigDict(extra="allow")

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _defines_schemas_by_name(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        given = parameters or {}
        wrong = [place for place in _DEFINITIONS if not isinstance(given.get(place, {}), dict)]
        if wrong:
            msg = f"{wrong[0]} must be an object of schemas by name"
            raise ValueError(msg)
        return parameters


class Tool(BodyPart):
    """`tools[]`."""

    type: Literal["function"]
    function: Function

    def as_template_input(self) -> dict[str, Any]:
        """As it came: what templates show to the model."""
        return self.model_dump(exclude_unset=True)


class NamedFunction(BodyPart):
    """`tool_choice.function`."""

    name: str


class NamedChoice(BodyPart):
    """`tool_choice`, where it names a function."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def check_choice(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Raise `InvalidRequest` for a choice among tools that are not there, or tools of one name."""
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"tools: two functions are called `{twice}`", param="tools")
    if choice is None or choice in {"none", "auto"}:
        return
    if not tools:
        raise InvalidRequest("tool_choice needs tools to choose from", param="tool_choice")
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        message = f"tool_choice: no tool is called `{choice.function.name[:64]}`"
        raise InvalidRequest(message, param="tool_choice")


def forced_call(
    tools: Sequence[Tool], choice: ToolChoice | None, *, only_one: bool
) -> RequestedGrammar | None:
    """The grammar of the calls that are insisted on; None where the model may choose.

    A named function's arguments alone; else a list of `{"name": ..., "parameters": ...}`.
    """
    if isinstance(choice, NamedChoice):
        function = next(t.function for t in tools if t.function.name == choice.function.name)
        return _wanted(function.parameters or _ANY_ARGUMENTS)
    if choice != "required":
        return None
    definitions: dict[str, Any] = {}
    calls = [_call(tool.function, f"tool{place}_", definitions) for place, tool in enumerate(tools)]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if only_one:
        schema["maxItems"] = 1
    return _wanted({**schema, "$defs": definitions})


def _wanted(schema: dict[str, Any]) -> RequestedGrammar:
    return RequestedGrammar(Grammar("json_schema", json.dumps(schema)), "tools")


def _call(function: Function, prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """One function's call; what its parameters refer to moves to `definitions`."""
    parameters = function.parameters or _ANY_ARGUMENTS
    for place in _DEFINITIONS:
        for name, schema in parameters.get(place, {}).items():
            definitions[prefix + name] = _renamed(schema, prefix)
    own = {name: value for name, value in parameters.items() if name not in _DEFINITIONS}
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "parameters": _renamed(own, prefix)},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _renamed(schema: Any, prefix: str) -> Any:
    """Let references find what they mean after the move."""
    if isinstance(schema, list):
        return [_renamed(item, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _renamed(value, prefix) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        for place in _DEFINITIONS:
            start = f"#/{place}/"
            if reference.startswith(start):
                renamed["$ref"] = f"#/$defs/{prefix}{reference.removeprefix(start)}"
    return renamed
