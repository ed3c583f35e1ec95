"""What one choice of a chat wrote: split into thoughts, text and calls, and seen as blocks."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from paceline_sidecar.generation import FinishReason
from paceline_sidecar.openai.call_writer import CallRules, CallWriter, ContentAndCalls, writer_of
from paceline_sidecar.text.codec import Codec
from paceline_sidecar.text.thoughts import ThoughtSplitter

ChatFinish = FinishReason | Literal["tool_calls"]
BlockKind = Literal["reasoning", "text", "call"]


class ChoiceParser:
    """Splits one choice into thoughts, text and tool calls, and knows how it ended."""

    def __init__(self, writer: CallWriter | None, thoughts: ThoughtSplitter | None = None) -> None:
        self.finish: ChatFinish | None = None
        self._writer = writer
        self._thoughts = thoughts
        self._called = False

    @property
    def is_plain(self) -> bool:
        """Whether what it is given is the answer's text, as it is."""
        return self._writer is None and self._thoughts is None

    def push(self, text: str, finish: FinishReason | None) -> ContentAndCalls:
        """Take the next piece of text."""
        ended, thought = finish is not None, ""
        if self._thoughts is not None:
            thought, text = self._thoughts.push(text, ended=ended)
        parsed = ContentAndCalls(text)
        if self._writer is not None:
            parsed = self._writer.write(text, ended=ended)
        if thought:
            parsed = msgspec.structs.replace(parsed, reasoning=thought)
        self._called = self._called or bool(parsed.calls)
        self.finish = "tool_calls" if self._called and finish == "stop" else finish
        return parsed


def parser_for(codec: Codec | None, rules: CallRules, prompt_tail: list[int]) -> ChoiceParser:
    """Return the parser for one choice of a chat whose prompt ends with these tokens."""
    if codec is None:
        return ChoiceParser(None)
    # What follows a grammar is the answer from its first token on.
    has_thoughts = codec.thinks and not rules.is_structured
    thoughts = ThoughtSplitter(is_open=codec.opens_thought(prompt_tail)) if has_thoughts else None
    return ChoiceParser(writer_of(rules, codec.tool_style), thoughts)


@dataclass(slots=True)
class Block:
    """A thought, text, or one call with its arguments, as it grows."""

    index: int
    """The place among the blocks of its choice."""
    kind: BlockKind
    id: str = ""
    """A call's own."""
    name: str = ""
    """The function that is called."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the thought, the text, or a call's arguments, so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A block that begins, grows by a piece or is complete."""

    kind: Literal["opened", "grown", "closed"]
    block: Block
    piece: str = ""


class BlockReader:
    """Reads a choice as blocks one after the other, which is how newer APIs show it."""

    def __init__(self, parser: ChoiceParser) -> None:
        self._parser = parser
        self.blocks: list[Block] = []
        """All that have begun; the last one may still grow."""
        self._is_open = False

    @property
    def finish(self) -> ChatFinish | None:
        """Return how the choice ended."""
        return self._parser.finish

    def push(self, text: str, finish: FinishReason | None) -> list[BlockChange]:
        """Take the next piece of text."""
        parsed = self._parser.push(text, finish)
        changes = self._grow("reasoning", parsed.reasoning) if parsed.reasoning else []
        changes += self._grow("text", parsed.content) if parsed.content else []
        for call in parsed.calls:
            if call.function.name is not None:
                changes += self._open(Block(0, "call", call.id or "", call.function.name))
            if call.function.arguments:
                changes += self._grow("call", call.function.arguments)
        return changes + self._close() if finish is not None else changes

    def _grow(self, kind: BlockKind, piece: str) -> list[BlockChange]:
        changes = []
        if not self._is_open or self.blocks[-1].kind != kind:
            changes = self._open(Block(0, kind))
        self.blocks[-1].pieces.append(piece)
        return [*changes, BlockChange("grown", self.blocks[-1], piece)]

    def _open(self, block: Block) -> list[BlockChange]:
        changes = self._close()
        block.index = len(self.blocks)
        self.blocks.append(block)
        self._is_open = True
        return [*changes, BlockChange("opened", block)]

    def _close(self) -> list[BlockChange]:
        was_open, self._is_open = self._is_open, False
        return [BlockChange("closed", self.blocks[-1])] if was_open else []
