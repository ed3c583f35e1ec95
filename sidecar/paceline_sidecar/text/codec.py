"""The served model's tokenizer and chat template, read from the run directory."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.text.chat_template import ChatTemplate, read_special_tokens, read_template
from paceline_sidecar.text.thoughts import OPEN, thinks
from paceline_sidecar.text.token_text import TokenTexts
from paceline_sidecar.text.tool_call_parser import ToolStyle, style_of

# Below this many characters encoding takes under a millisecond: a thread would cost more.
_SHORT_CHARACTERS = 2_000
# Enough to tell a decoder that the output continues a text: it then keeps a leading space.
_CONTEXT_TOKENS = 6
TAIL_TOKENS: Final = 16
"""Enough for the tag that opens a thought, even of single bytes."""
# Of its own: whoever sends long prompts must not take the threads that everything else shares.
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Codec:
    """Text to tokens for one model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    token_texts: TokenTexts
    longest_token: int
    """Characters of the longest token."""
    tool_style: ToolStyle | None = None
    """How the model writes calls of tools; None where it knows none."""
    thinks: bool = False
    """Whether the model writes its thoughts before its answer."""
    most_characters: float = math.inf
    """A longer text has more tokens than the context whatever they are: it is not tokenized."""

    @classmethod
    def load(cls, run_dir: Path) -> "Codec":
        """Read what the engine wrote while it loaded its model; texts may be of any length.

        It takes a third of a second for a small model, and more than one for a large vocabulary.
        """
        tokenizer = Tokenizer.from_file(str(run_dir / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = json.loads((run_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
        source = read_template(config)
        template = None if source is None else ChatTemplate(source, read_special_tokens(config))
        return cls(
            tokenizer=tokenizer,
            template=template,
            token_texts=TokenTexts(tokenizer),
            longest_token=max(map(len, tokenizer.get_vocab())),
            tool_style=style_of(source) if source and template and template.takes_tools else None,
            thinks=source is not None and thinks(source),
        )

    def within(self, context_tokens: int) -> "Codec":
        """Return the same for a model whose context has so many tokens."""
        return replace(self, most_characters=context_tokens * self.longest_token)

    def decode(self, token_ids: list[int]) -> str:
        """The text of a prompt that was given as tokens, special tokens included."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of a piece of text, at once."""
        return self._encode_now(text, add_special_tokens=False)

    def opens_thought(self, prompt_tail: list[int]) -> bool:
        """Tell whether a prompt ends within a thought, which the output then goes on with."""
        return self.thinks and self.decode(prompt_tail).rstrip().endswith(OPEN)

    async def decode_aside(self, token_ids: list[int]) -> str:
        """As `decode`, of any number of tokens."""
        return await _aside(partial(self.decode, token_ids))

    def pieces(self, token_ids: list[int]) -> list[str]:
        """The tokens as the vocabulary has them; empty for an id that it does not have."""
        return [self.tokenizer.id_to_token(id_) or "" for id_ in token_ids]

    async def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a plain prompt, with the special tokens that the model expects around one."""
        return await self._encode(text, add_special_tokens=add_special_tokens)

    def knows_variable(self, name: str) -> bool:
        """Tell whether the chat template reads a variable of that name."""
        return self.template is not None and name in self.template.variables

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        """Tokens of a conversation; the template brings its own special tokens."""
        if self.template is None:
            raise InvalidRequest("The served model has no chat template.", param="messages")
        characters = sum(map(text_length, messages))
        self._check_length(characters)
        render = partial(self.template.render, messages, tools, variables)
        is_short = characters < _SHORT_CHARACTERS and not tools and not variables
        prompt = render() if is_short else await _aside(render)
        return await self._encode(prompt, add_special_tokens=False)

    async def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self._check_length(len(text))
        if len(text) < _SHORT_CHARACTERS:
            return self._encode_now(text, add_special_tokens=add_special_tokens)
        # The tokenizer lets go of the interpreter's lock: the event loop goes on meanwhile.
        return await _aside(partial(self._encode_now, text, add_special_tokens=add_special_tokens))

    def _check_length(self, characters: int) -> None:
        if characters > self.most_characters:
            message = (
                f"The prompt has {characters} characters: more than {self.most_characters:.0f}"
                " do not fit into the model's context, whatever their tokens are."
            )
            raise InvalidRequest(message, param="prompt", code="context_length_exceeded")

    def _encode_now(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def text_length(message: Mapping[str, Any]) -> int:
    """Count the characters of a message that a template may write: content and thought."""
    return len(message["content"]) + len(message.get("reasoning_content", ""))


async def _aside(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


class Detokenizer:
    """Turns one output's tokens to text as they come, in whole UTF-8 characters only."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(
            prompt_ids[-_CONTEXT_TOKENS:], skip_special_tokens=skip_special_tokens
        )

    def push(self, token_ids: list[int]) -> str:
        """Return the text that these tokens complete."""
        if len(token_ids) == 1:
            return self._stream.step(self._tokenizer, token_ids[0]) or ""
        pieces = [self._stream.step(self._tokenizer, token_id) for token_id in token_ids]
        return "".join(piece for piece in pieces if piece is not None)
