"""The messages of a request: blocks of text, calls and their results, as messages of a chat."""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.chat_request import CalledFunction, Message, ToolCall

_FAULT = "Error: "


Role = Literal["user", "assistant", "system"]


class TextBlock(BodyPart):
    """Text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(BodyPart):
    """What the assistant thought before; none of ours is redacted."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""


class ToolUseBlock(BodyPart):
    """What the assistant called before."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class ToolResultBlock(BodyPart):
    """What came of it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(fail_fast=True)] = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        """Return it as text; a template has no other way to say that something failed."""
        return (_FAULT if self.is_error else "") + plain(self.content)


def _kind(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return "<thinking>" if kind == "redacted_thinking" else f"<{kind}>"


# The tags are no identifiers: a refusal's path leaves them out.
Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")],
    Discriminator(_kind),
]


class InputMessage(BodyPart):
    """One turn of the conversation."""

    role: Role
    content: str | Annotated[list[Block], Field(fail_fast=True)]


def plain(text: str | list[TextBlock]) -> str:
    """Return text, or blocks of it, as one text."""
    return text if isinstance(text, str) else "".join(block.text for block in text)


def chat_messages(
    system: str | list[TextBlock] | None, messages: list[InputMessage]
) -> list[Message]:
    """Return the messages of a chat; results of calls become messages of their own, first."""
    made = [] if system is None else [Message(role="system", content=plain(system))]
    for message in messages:
        if isinstance(message.content, str):
            made.append(Message(role=message.role, content=message.content))
        else:
            made += _from_blocks(message.role, message.content)
    return made


def _from_blocks(role: Role, blocks: list[Block]) -> list[Message]:
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    made = [
        Message(role="tool", content=each.text, tool_call_id=each.tool_use_id) for each in results
    ]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    if texts or calls or not results:
        text, reasoning = plain(texts), thought or None
        made.append(Message(role=role, content=text, tool_calls=calls or None, reasoning=reasoning))
    return made


def _call(block: ToolUseBlock) -> ToolCall:
    function = CalledFunction(name=block.name, arguments=json.dumps(block.input))
    return ToolCall(id=block.id, function=function)
