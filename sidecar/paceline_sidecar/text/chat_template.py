"""A model's Jinja chat template, rendered in a sandbox that cannot change what it is given."""

import json
import time
from collections.abc import Mapping, Sized
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline_sidecar.errors import InvalidRequest

_MAX_ITERATIONS = 100_000
"""Real templates go through the messages a few times, of which a request has at most 4,096."""
_MAX_CPU_S = 2.0
"""Of one rendering: a step of a loop may do much."""
_MAX_CHARACTERS = 16 * 1024 * 1024
_MAX_POWER = 1_000
_COUNT = "_paceline_count"
_FAULTS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only text."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - declared so by its base

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Give the body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Budget:
    """Counts what a rendering does; a template that does more than any real one is stopped."""

    def __init__(self) -> None:
        self._left = _MAX_ITERATIONS
        self._until = time.thread_time() + _MAX_CPU_S  # whatever else runs on the machine

    def __call__(self) -> str:
        """Count one iteration of a loop, or one call of a macro; raises `TemplateError`."""
        self._left -= 1
        if self._left < 0:
            raise TemplateError(f"more than {_MAX_ITERATIONS:,} iterations of loops")
        if time.thread_time() > self._until:
            raise TemplateError(f"more than {_MAX_CPU_S:g} s of a processor")
        return ""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own, in which products of texts and powers are bounded, too."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would fill the memory in one step; raises `TemplateError`."""
        if operator == "**" and not (abs(left) <= _MAX_POWER and abs(right) <= _MAX_POWER):
            raise TemplateError("a power of a large number")
        for text, times in ((left, right), (right, left)):
            if isinstance(text, Sized) and len(text) * times > _MAX_CHARACTERS:
                raise TemplateError(f"a text of more than {_MAX_CHARACTERS:,} characters")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """Messages to one prompt.

    The template is the model author's, who may be anybody. It sees nothing but its arguments and
    changes none of them, and its loops end; what it writes is held against the model's context.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _tojson
        tree = environment.parse(source)
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self._template = environment.from_string(_counted(tree))
        self._special_tokens = special_tokens
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
                **{_COUNT: _Budget()},
            )
        # A template meets whatever roles and order the client sends: its errors are the client's.
        except _FAULTS as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _counted(tree: nodes.Template) -> nodes.Template:
    """Let each iteration of a loop and each call of a macro count itself."""
    for node in tree.find_all(nodes.Stmt):
        if not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            continue
        count = nodes.Call(nodes.Name(_COUNT, "load"), [], [], None, None)
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(nodes.Not(count), node.test)  # it returns an empty text
        node.body.insert(0, nodes.Output([count]).set_lineno(node.lineno, override=True))
    return tree


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
