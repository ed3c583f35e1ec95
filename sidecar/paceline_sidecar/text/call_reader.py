"""Read one call as it is written: its name first, then its arguments piece by piece."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_MAX_BEGINNING: Final = 256
"""A call that has not begun within so many characters is none that can be read piece by piece."""
_BEGINNING = re.compile(
    r'\s{0,9}\{\s{0,9}"name"\s{0,9}:\s{0,9}"([^"\\]{1,64})"\s{0,9},'
    r'\s{0,9}"(?:arguments|parameters)"\s{0,9}:\s{0,9}(?=\{)'
)
_NAMED_BEGINNING = re.compile(r"\s{0,9}([\w.-]{1,64})\s{0,9}(?:\[ARGS\]\s{0,9})?(?=\{)")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call's arguments; a piece with a name begins a call."""

    arguments: str
    """JSON, or a part of it."""
    name: str | None = None


class CallReader:
    """Reads `{"name": ..., "arguments": {...}}`, and `name[ARGS]{...}` where it `may_lead`.

    A line break or another control character in a string is escaped, as JSON wants it.
    """

    def __init__(self, names: Collection[str], *, may_lead: bool = False) -> None:
        """`names` are the functions that were offered."""
        self.has_begun = False
        self._names = names
        self._may_lead = may_lead
        self._num_around = 0
        """Objects around the arguments."""
        self._depth = 0
        self._are_over = False
        """The arguments, though the call may not be."""
        self._in_string = False
        self._is_escaped = False

    @property
    def is_over(self) -> bool:
        """Whether the call has ended."""
        return self.has_begun and not self._depth

    def push(self, text: str) -> tuple[CallPiece | None, str]:
        """Return a piece of the call, and the part of the text that is not the call's.

        As long as no call has begun that is all of it: it must come again, with what follows.
        """
        if self.is_over:
            return None, text
        if self.has_begun:
            arguments, rest = self._read(text)
            return (CallPiece(arguments) if arguments else None), rest
        found = _BEGINNING.match(text, 0, _MAX_BEGINNING)
        num_around = 1
        if found is None and self._may_lead:
            found, num_around = _NAMED_BEGINNING.match(text, 0, _MAX_BEGINNING), 0
        if found is None or found[1] not in self._names:
            return None, text
        self.has_begun = True
        self._num_around = self._depth = num_around
        arguments, rest = self._read(text[found.end() :])
        return CallPiece(arguments, found[1]), rest

    def _read(self, text: str) -> tuple[str, str]:
        """Return the arguments' part of the text, and what follows the call."""
        taken: list[str] = []
        for at, character in enumerate(text):
            # A tag begins with "<", which stands in no JSON outside of strings.
            if character == "<" and not self._in_string:
                self._depth = 0
                return "".join(taken), text[at:]
            self._step(character)
            if not self._are_over:
                is_raw = self._in_string and character < " "
                taken.append(f"\\u{ord(character):04x}" if is_raw else character)
                self._are_over = self._depth == self._num_around
            if not self._depth:
                return "".join(taken), text[at + 1 :]
        return "".join(taken), ""

    def _step(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == '"':
            self._in_string = not self._in_string
        elif self._in_string:
            self._is_escaped = character == "\\"
        elif character == "{":
            self._depth += 1
        elif character == "}":
            self._depth -= 1
