"""The input of a response: a text, or items, as messages of a chat."""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.chat_request import CalledFunction, Message, ToolCall


class InputText(BodyPart):
    """A part of a message, or of a function's output; only text is served."""

    type: Literal["input_text", "output_text", "text"]
    text: str


Text = str | Annotated[list[InputText], Field(fail_fast=True)]


class MessageItem(BodyPart):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class FunctionCallItem(CalledFunction):
    """What the assistant called before."""

    type: Literal["function_call"]
    call_id: str


class FunctionOutputItem(BodyPart):
    """What came of it."""

    type: Literal["function_call_output"]
    call_id: str
    output: Text


class ReasoningText(BodyPart):
    """A part of a thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(BodyPart):
    """What the assistant thought before it said or called what follows."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] = Field(default_factory=list)


def _kind(item: Any) -> str:
    """Return the kind of an item; a message may go without its own."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return f"<{kind or 'message'}>"


# The tags are no identifiers: a refusal's path leaves them out.
Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(_kind),
]


def chat_messages(given: str | list[Item], instructions: str | None) -> list[Message]:
    """Return the messages of a chat; calls in a row are one assistant's, as templates expect."""
    messages = [] if instructions is None else [Message(role="system", content=instructions)]
    if isinstance(given, str):
        return [*messages, Message(role="user", content=given)]
    thought: str | None = None
    for item in given:
        match item:
            case MessageItem(role="assistant"):
                said = _plain(item.content)
                messages.append(Message(role="assistant", content=said, reasoning=thought))
                thought = None
            case MessageItem():
                messages.append(Message(role=item.role, content=_plain(item.content)))
            case FunctionOutputItem():
                text = _plain(item.output)
                messages.append(Message(role="tool", content=text, tool_call_id=item.call_id))
            case FunctionCallItem():
                _add_call(messages, item, thought)
                thought = None
            case ReasoningItem():
                thought = "".join(part.text for part in item.content) or None
    if not messages:
        raise InvalidRequest("input: at least one message is needed", param="input")
    return messages


def _plain(text: Text) -> str:
    return text if isinstance(text, str) else "".join(part.text for part in text)


def _add_call(messages: list[Message], item: FunctionCallItem, thought: str | None) -> None:
    function = CalledFunction(name=item.name, arguments=item.arguments or json.dumps({}))
    call = ToolCall(id=item.call_id, function=function)
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant":
        calls = [*(last.tool_calls or ()), call]
        messages[-1] = last.model_copy(update={"tool_calls": calls})
    else:
        messages.append(Message(role="assistant", tool_calls=[call], reasoning=thought))
