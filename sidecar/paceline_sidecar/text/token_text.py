"""One token as text and as bytes, for log-probabilities.

A token may be half a character: its bytes are exact, its text shows what cannot be read as U+FFFD.
The bytes of all tokens of a text are together the text's.
"""

import json
import re
from dataclasses import dataclass, field

from tokenizers import Tokenizer

_SPACE = "\u2581"  # what SentencePiece writes for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenText:
    """What one token stands for."""

    text: str
    data: bytes


@dataclass(slots=True)
class TokenTexts:
    """Looked up once for each token of a vocabulary."""

    tokenizer: Tokenizer
    _known: dict[int, TokenText] = field(default_factory=dict)
    _added: frozenset[int] = field(init=False)
    _is_byte_level: bool = field(init=False)

    def __post_init__(self) -> None:
        """See how the tokenizer writes bytes."""
        self._added = frozenset(self.tokenizer.get_added_tokens_decoder())
        decoder = json.dumps(json.loads(self.tokenizer.to_str()).get("decoder"))
        self._is_byte_level = '"ByteLevel"' in decoder

    def of(self, token_id: int) -> TokenText:
        """Text and bytes of a token; both empty for an id that the tokenizer has no word for."""
        known = self._known.get(token_id)
        if known is None:
            data = self._data(token_id)
            known = self._known[token_id] = TokenText(data.decode(errors="replace"), data)
        return known

    def _data(self, token_id: int) -> bytes:
        piece = self.tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._added:
            return piece.encode()
        if self._is_byte_level:
            return b"".join(_BYTE_OF.get(character, character.encode()) for character in piece)
        byte = _BYTE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return piece.replace(_SPACE, " ").encode()


def _byte_level_alphabet() -> dict[str, bytes]:
    """Printable Latin-1 stands for itself, the other bytes follow in order from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    pairs = [(byte, byte) for byte in itself]
    pairs += [(0x100 + place, byte) for place, byte in enumerate(others)]
    return {chr(character): bytes([byte]) for character, byte in pairs}


_BYTE_OF = _byte_level_alphabet()
