"""Structured output: the grammar that a request asks for, under five names.

`response_format` is OpenAI's, `structured_outputs` vLLM's, `guided_*` what vLLM called it before.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.body import BodyPart
from paceline_wire import Grammar

# Beyond these, compiling takes seconds even where nothing is meant to explode.
_MOST_CHARACTERS = {
    "json_schema": 64 * 1024,
    "regex": 4 * 1024,
    "choice": 64 * 1024,
    "grammar": 32 * 1024,
}
_ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')

Schema = dict[str, Any]
Choices = Annotated[list[str], Field(min_length=1, max_length=4096, fail_fast=True)]


class JsonSchemaFormat(BodyPart):
    """`response_format.json_schema`."""

    model_config = ConfigDict(populate_by_name=True)

    name: str | None = None
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None
    """Accepted; the schema is always kept to the letter."""


class ResponseFormat(BodyPart):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BodyPart):
    """`structured_outputs`."""

    model_config = ConfigDict(extra="forbid")

    json_: Schema | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class Structured(BodyPart):
    """The fields of a request that ask for structure; at most one of them may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


@dataclass(frozen=True, slots=True)
class RequestedGrammar:
    """A grammar, and the field of the request that it came from."""

    grammar: Grammar
    param: str


def requested_grammar(body: Structured) -> RequestedGrammar | None:
    """The grammar that a request asks for; raises `InvalidRequest`."""
    wanted = [*_response_format(body), *_structured(body), *_guided(body)]
    if not wanted:
        return None
    if len(wanted) > 1:
        names = " and ".join(each.param for each in wanted[:2])
        message = f"{wanted[1].param}: at most one structure can be asked for, got {names}"
        raise InvalidRequest(message, param=wanted[1].param)
    return wanted[0]


def check_size(wanted: RequestedGrammar) -> None:
    """Raise `InvalidRequest` for a grammar of too many characters, or of none."""
    grammar, param = wanted.grammar, wanted.param
    most = _MOST_CHARACTERS[grammar.kind]
    if len(grammar.text) > most:
        message = f"{param} has {len(grammar.text)} characters, {most} are the most"
        raise InvalidRequest(message, param=param)
    line = max(map(len, _lines(wanted)), default=0)
    if line > _MOST_CHARACTERS["regex"]:
        message = f"{param} has an expression or a line of {line} characters, "
        message += f"{_MOST_CHARACTERS['regex']} are the most"
        raise InvalidRequest(message, param=param)
    if not grammar.text:
        raise InvalidRequest(f"{param} is empty", param=param)


def _lines(wanted: RequestedGrammar) -> list[str]:
    """Return the lines that may hold an expression which takes long to compile."""
    grammar = wanted.grammar
    if grammar.kind == "grammar":
        return grammar.text.splitlines()
    if grammar.kind == "json_schema":
        return [*_patterns(_parsed(wanted))]
    return []


def _parsed(wanted: RequestedGrammar) -> Any:
    try:
        return json.loads(wanted.grammar.text)
    except (ValueError, RecursionError) as error:
        message = f"{wanted.param} is no JSON that can be read: {error}"
        raise InvalidRequest(message, param=wanted.param) from error


def _patterns(schema: Any) -> Iterator[str]:
    """Yield the expressions of a schema: values of `pattern`, names under `patternProperties`."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(pattern := part.get("pattern"), str):
                yield pattern
            if isinstance(named := part.get("patternProperties"), dict):
                yield from named
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _response_format(body: Structured) -> list[RequestedGrammar]:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [RequestedGrammar(_ANY_OBJECT, "response_format")]
    if wanted.json_schema is None:
        message = "response_format.json_schema is missing"
        raise InvalidRequest(message, param="response_format.json_schema")
    return [_schema(wanted.json_schema.schema_, "response_format.json_schema.schema")]


def _structured(body: Structured) -> list[RequestedGrammar]:
    wanted = body.structured_outputs
    if wanted is None:
        return []
    found = _each(wanted.json_, wanted.regex, wanted.choice, wanted.grammar, "structured_outputs.")
    if wanted.json_object:
        found.append(RequestedGrammar(_ANY_OBJECT, "structured_outputs.json_object"))
    if not found:
        message = "structured_outputs: one of json, json_object, regex, choice, grammar is needed"
        raise InvalidRequest(message, param="structured_outputs")
    return found


def _guided(body: Structured) -> list[RequestedGrammar]:
    return _each(
        body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar, "guided_"
    )


def _each(
    schema: Schema | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    prefix: str,
) -> list[RequestedGrammar]:
    found = []
    if schema is not None:
        found.append(_schema(schema, f"{prefix}json"))
    if regex is not None:
        found.append(RequestedGrammar(Grammar("regex", regex), f"{prefix}regex"))
    if choice is not None:
        found.append(RequestedGrammar(Grammar("choice", json.dumps(choice)), f"{prefix}choice"))
    if grammar is not None:
        found.append(RequestedGrammar(Grammar("grammar", grammar), f"{prefix}grammar"))
    return found


def _schema(schema: Schema | str, param: str) -> RequestedGrammar:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return RequestedGrammar(Grammar("json_schema", text), param)
