"""`POST /v1/chat/completions`: a conversation."""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import (
    INT32_MAX,
    MAX_LOGPROBS,
    GenerationRequest,
    TextRequest,
)
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.structured import RequestedGrammar
from paceline_sidecar.openai.tools import (
    NamedChoice,
    ToolChoice,
    Tools,
    check_choice,
    forced_call,
)

_MAX_CALLS = 128


class TextPart(BodyPart):
    """One part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class CalledFunction(BodyPart):
    """`messages[].tool_calls[].function`."""

    name: str
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, arguments: str) -> str:
        # Templates write them out again: they must be read first, and be text that can be encoded.
        try:
            read = json.loads(arguments or "{}")
            json.dumps(read, ensure_ascii=False).encode()
            is_object = isinstance(read, dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            msg = "arguments must be a JSON object, as text without half of a surrogate pair"
            raise ValueError(msg)
        return arguments


class ToolCall(BodyPart):
    """`messages[].tool_calls[]`: what the assistant called before."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def as_template_input(self) -> dict[str, Any]:
        """With its arguments as an object, which is what templates expect."""
        arguments = json.loads(self.function.arguments or "{}")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class Message(BodyPart):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=_MAX_CALLS, fail_fast=True)] | None = (
        None
    )
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    """What the assistant thought; templates show it again where they want it."""
    reasoning_content: str | None = None
    """The same, under its older name."""

    def as_template_input(self) -> dict[str, Any]:
        """Role, plain text and calls; templates know a `developer` as `system`."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts or [])
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
        }
        if self.tool_calls:
            message["tool_calls"] = [call.as_template_input() for call in self.tool_calls]
        thought = self.reasoning_content if self.reasoning is None else self.reasoning
        if thought is not None:
            message["reasoning_content"] = thought
        for name in ("tool_call_id", "name"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        return message


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "moderation": (),
        "store": (False,),
        "verbosity": ("medium",),
        "web_search_options": (),
        "include_reasoning": (True,),
        "echo": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
        "documents": ([],),
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    }

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: one call at most."""
    reasoning_effort: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """A variable of the chat template; refused where the template does not know it."""
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Variables of the chat template."""

    @property
    def template_variables(self) -> dict[str, Any]:
        """Return what the chat template is given beside the messages and tools."""
        given = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            given["reasoning_effort"] = self.reasoning_effort
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            message = "top_logprobs needs logprobs to be true"
            raise InvalidRequest(message, param="top_logprobs")
        check_choice(self.tools or (), self.tool_choice)
        return self

    @field_validator("messages")
    @classmethod
    def _says_something(cls, messages: list[Message]) -> list[Message]:
        for message in messages:
            if message.content is None and message.role != "assistant":
                msg = f"a message of role `{message.role}` needs a content"
                raise ValueError(msg)
        return messages

    @property
    def offered(self) -> frozenset[str]:
        """The functions that may be called."""
        if self.tool_choice == "none":
            return frozenset()
        return frozenset(tool.function.name for tool in self.tools or ())

    @property
    def named(self) -> str | None:
        """The one function that must be called."""
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedChoice) else None

    @property
    def must_call(self) -> bool:
        """Whether the output is nothing but calls."""
        return self.named is not None or self.tool_choice == "required"

    @property
    def grammar_from_fields(self) -> RequestedGrammar | None:
        """Calls that are insisted on, or what else the output must be."""
        calls = forced_call(
            self.tools or (), self.tool_choice, only_one=self.parallel_tool_calls is False
        )
        wanted = super().grammar_from_fields
        if calls is not None and wanted is not None:
            message = f"{wanted.param}: a call is insisted on by tool_choice already"
            raise InvalidRequest(message, param=wanted.param)
        return calls or wanted

    @property
    def requested_tokens(self) -> int | None:
        """The newer name counts when both are given."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer


def not_of_chats(*served: str) -> dict[str, tuple[object, ...]]:
    """Return what a path refuses of a chat's fields: all but those that it serves itself."""
    refused: dict[str, tuple[object, ...]] = {
        **{name: () for name in ChatRequest.model_fields if name not in TextRequest.model_fields},
        **ChatRequest.unsupported,
    }
    # `user` is the client's own label everywhere.
    return {name: refused[name] for name in refused if name not in {*served, "user"}}
