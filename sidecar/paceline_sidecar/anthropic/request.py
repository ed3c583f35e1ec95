"""`POST /v1/messages`: what a client asks, and the chat that it stands for."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from paceline_sidecar.anthropic.blocks import InputMessage, TextBlock, chat_messages
from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import (
    INT32_MAX,
    StopString,
    TextRequest,
    refusal_of,
)
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.chat_request import ChatRequest, not_of_chats
from paceline_sidecar.openai.structured import JsonSchemaFormat, ResponseFormat, Schema
from paceline_sidecar.openai.tools import (
    MAX_TOOLS,
    Function,
    Name,
    NamedChoice,
    NamedFunction,
    Tool,
    ToolChoice,
)

_MAX_MESSAGES = 4096


class ClientTool(BodyPart):
    """`tools[]`: a function of the client's; a server has no tools of its own."""

    type: Literal["custom"] = "custom"
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def as_chat_tool(self) -> Tool:
        """Return it as a chat has it."""
        function = Function(
            name=self.name, description=self.description, parameters=self.input_schema
        )
        return Tool(type="function", function=function)


class Choice(BodyPart):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _names_a_tool(self) -> Self:
        if self.type == "tool" and self.name is None:
            msg = "name is missing"
            raise ValueError(msg)
        return self


class OutputFormat(BodyPart):
    """`output_config.format`."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(BodyPart):
    """`output_config`."""

    format: OutputFormat | None = None
    effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None


class Thinking(BodyPart):
    """`thinking`: a variable of the templates that can switch it; no budget is kept."""

    type: Literal["enabled", "adaptive", "disabled"]


class CountTokensRequest(TextRequest):
    """`POST /v1/messages/count_tokens`: all that makes the prompt."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **not_of_chats("chat_template_kwargs", "messages", "tool_choice", "tools"),
        "container": (),
        "context_management": (),
        "diagnostics": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    messages: Annotated[
        list[InputMessage], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)
    ]
    system: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Variables of the chat template, as vLLM has them."""

    @model_validator(mode="before")
    @classmethod
    def _tier_has_our_name(cls, given: Any) -> Any:
        # Anthropic's other tier: nothing is kept aside for anybody here.
        if isinstance(given, dict) and given.get("service_tier") == "standard_only":
            return {**given, "service_tier": "default"}
        return given

    @model_validator(mode="after")
    def _is_a_chat(self) -> Self:
        if self.messages[-1].role == "assistant":
            last = f"messages[{len(self.messages) - 1}]"
            message = f"{last}: an answer cannot be begun by the client, the last turn is a user's"
            raise InvalidRequest(message, param=last, code="unsupported")
        try:
            self.chat  # noqa: B018 - made here, so that it is refused where it is read
        except ValidationError as error:
            raise refusal_of(error) from error
        return self

    @cached_property
    def chat(self) -> ChatRequest:
        """Return the chat that the request stands for; raises `InvalidRequest`."""
        choice, config = self.tool_choice, self.output_config
        return ChatRequest(
            model=self.model,
            messages=chat_messages(self.system, self.messages),
            tools=[tool.as_chat_tool() for tool in self.tools] if self.tools else None,
            tool_choice=_chat_choice(choice),
            parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
            response_format=_chat_format(config.format) if config and config.format else None,
            reasoning_effort=config.effort if config else None,
            chat_template_kwargs=self._variables,
            **self._sampling,
        )

    @property
    def _sampling(self) -> dict[str, Any]:
        return {}

    @property
    def _variables(self) -> dict[str, Any]:
        given = self.chat_template_kwargs or {}
        if self.thinking is None:
            return given
        return {"enable_thinking": self.thinking.type != "disabled", **given}


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        name: harmless
        for name, harmless in CountTokensRequest.unsupported.items()
        if name not in {"max_tokens", "temperature", "top_k", "top_p"}
    }

    max_tokens: int = Field(ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    stop_sequences: Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = None

    @property
    def _sampling(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
        }


def _chat_choice(choice: Choice | None) -> ToolChoice | None:
    match choice:
        case Choice(type="tool", name=str(name)):
            return NamedChoice(type="function", function=NamedFunction(name=name))
        case Choice(type="any"):
            return "required"
        case Choice(type="none"):
            return "none"
        case Choice(type="auto"):
            return "auto"
        case _:
            return None


def _chat_format(wanted: OutputFormat) -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=wanted.schema_))
