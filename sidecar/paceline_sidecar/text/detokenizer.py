"""Tokens of one request to text, piece by piece, whole UTF-8 characters only."""

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Enough to tell a decoder that the output continues a text: it then keeps a leading space.
_CONTEXT_TOKENS = 6


class Detokenizer:
    """Holds the incomplete end of one output."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(
            prompt_ids[-_CONTEXT_TOKENS:], skip_special_tokens=skip_special_tokens
        )

    def push(self, token_ids: list[int]) -> str:
        """The text that these tokens complete."""
        pieces = [self._stream.step(self._tokenizer, token_id) for token_id in token_ids]
        return "".join(piece for piece in pieces if piece is not None)
