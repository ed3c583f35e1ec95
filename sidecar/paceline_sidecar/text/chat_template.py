"""A model's Jinja chat template, rendered in a sandbox that cannot change what it is given."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline_sidecar.errors import InvalidRequest


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only text."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - declared so by its base

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Give the body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Messages to one prompt."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _tojson
        self._template = environment.from_string(source)
        self._special_tokens = special_tokens
        self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        """What it reads: messages, tools, special tokens and anything else."""

    @property
    def takes_tools(self) -> bool:
        """Whether it shows the model what it may call."""
        return "tools" in self.variables

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt after which the assistant speaks; `variables` are the client's own."""
        taken = sorted({"messages", "tools", *self._special_tokens} & variables.keys())
        if taken:
            message = f"chat_template_kwargs: `{taken[0]}` is given by the server"
            raise InvalidRequest(message, param="chat_template_kwargs")
        try:
            return self._template.render(
                {"add_generation_prompt": True, **variables},
                messages=messages,
                tools=tools,
                **self._special_tokens,
            )
        # A template meets whatever roles and order the client sends: its errors are the client's.
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error


def read_template(config: dict[str, Any]) -> str | None:
    """`chat_template` of a tokenizer_config.json: one string, or a list with one `default`."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and their kind: strings, or objects with a `content`."""
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: a template writes for a model, where Jinja's own filter writes for HTML.

    It takes what published templates, written for transformers, ask of it.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(format_: str) -> str:
    return datetime.now(tz=UTC).strftime(format_)
