"""`POST /v1/responses`: what a client asks, and the chat that it stands for."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import (
    INT32_MAX,
    TextRequest,
    refusal_of,
)
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.chat_request import ChatRequest, not_of_chats
from paceline_sidecar.openai.structured import JsonSchemaFormat, ResponseFormat, Schema
from paceline_sidecar.openai.tools import (
    MAX_TOOLS,
    Function,
    NamedChoice,
    NamedFunction,
    Tool,
    ToolChoice,
)
from paceline_sidecar.responses_api.items import Item, chat_messages

_MAX_ITEMS = 4096


class FunctionTool(Function):
    """`tools[]`: a function; a server has no tools of its own."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else "function"
        if isinstance(kind, str) and kind != "function":
            message = f"tools: only functions are supported, got `{kind[:64]}`"
            raise InvalidRequest(message, param="tools", code="unsupported")
        return given

    def as_chat_tool(self) -> Tool:
        """Return it as a chat has it: inside of an object."""
        function = self.model_dump(exclude={"type"}, exclude_unset=True)
        return Tool(type="function", function=Function(**function))


class FunctionChoice(BodyPart):
    """`tool_choice`, where it names a function."""

    type: Literal["function"]
    name: str


class TextFormat(BodyPart):
    """`text.format`."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            msg = "schema is missing"
            raise ValueError(msg)
        return self

    def as_chat_format(self) -> ResponseFormat:
        """Return it as a chat has it."""
        if self.schema_ is None:
            return ResponseFormat(type=self.type)
        return ResponseFormat(type=self.type, json_schema=JsonSchemaFormat(schema=self.schema_))


class TextConfig(BodyPart):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BodyPart):
    """`reasoning`: summaries are not made."""

    effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    summary: Literal["auto"] | None = None


class StreamOptions(BodyPart):
    """`stream_options`: nothing is added that would hide the lengths of pieces."""

    include_obfuscation: bool = False


class ResponsesRequest(TextRequest):
    """`POST /v1/responses`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **not_of_chats(
            "chat_template_kwargs",
            "parallel_tool_calls",
            "store",
            "stream_options",
            "temperature",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
        ),
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "include": ([], ["reasoning.encrypted_content"]),
        "max_tool_calls": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "truncation": ("disabled",),
    }

    input: str | Annotated[list[Item], Field(min_length=1, max_length=_MAX_ITEMS, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_logprobs: Literal[0] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Variables of the chat template, as vLLM has them."""
    stream_options: StreamOptions | None = None
    store: bool | None = None
    """Nothing is stored: the answer says `store: false`, as vLLM's does."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _is_a_chat(self) -> Self:
        try:
            self.chat  # noqa: B018 - made here, so that it is refused where it is read
        except ValidationError as error:
            raise refusal_of(error) from error
        return self

    @cached_property
    def chat(self) -> ChatRequest:
        """Return the chat that the request stands for; raises `InvalidRequest`."""
        text_format = self.text.format if self.text is not None else None
        return ChatRequest(
            model=self.model,
            messages=chat_messages(self.input, self.instructions),
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[tool.as_chat_tool() for tool in self.tools] if self.tools else None,
            tool_choice=self._choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if text_format is None else text_format.as_chat_format(),
            reasoning_effort=self.reasoning.effort if self.reasoning is not None else None,
            chat_template_kwargs=self.chat_template_kwargs,
        )

    @property
    def _choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        if isinstance(choice, FunctionChoice):
            return NamedChoice(type="function", function=NamedFunction(name=choice.name))
        return choice
