"""Constraint (Protocol): which tokens may come next, as a bitmask over the vocabulary.

A `Guide` is a constraint that can also be followed ahead of the output: along draft tokens, whose
masks a step needs all at once, and along the tokens that it leaves no choice about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

TokenBitmask: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]  # [words], or [rows, words]
"""One bit per token of the vocabulary, the lowest bit first, in words of 32."""
_WORD_BITS = 32


class Constraint(Protocol):
    """Belongs to one request, whose output it follows."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Set the bits of the tokens that may follow `output_ids`, the whole output so far.

        Raises `ValueError`, with a message for the client, when that takes more work than it may.
        """
        ...


class DraftGivenUp(Exception):  # noqa: N818 - no error: the same tokens come without a draft
    """A draft could not be followed to its end; the request gets no other."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Tokens that may follow an output, one after the other."""

    token_ids: tuple[int, ...] = ()
    is_forced: tuple[bool, ...] = ()
    """Of each token: whether it is the only one that may stand there."""


@runtime_checkable
class Guide(Constraint, Protocol):
    """A constraint that can be followed along tokens which are not part of the output yet."""

    def walk(self, output_ids: Sequence[int], proposed: Sequence[int], most: int) -> Walk:
        """Return up to `most` tokens that may follow: forced ones, else those that are proposed.

        Ends at the first proposed token that may not follow. Empty while another thread is at work
        with it, and where following it ahead has proved to take too long.
        """
        ...

    def fill_bitmasks(
        self,
        output_ids: Sequence[int],
        draft: Sequence[int],
        bitmasks: TokenBitmask,  # [1 + draft, words]: empty
    ) -> None:
        """Set the bits of what may follow the output, then of what may follow each draft token.

        What it knows of the output afterwards does not depend on the draft. Raises `ValueError` as
        `fill_bitmask`, or `DraftGivenUp` for what happened behind the output's end.
        """
        ...


def empty_bitmasks(rows: int, vocab_size: int) -> TokenBitmask:  # [rows, words]
    """Make bitmasks that allow no token."""
    return np.zeros((rows, -(-vocab_size // _WORD_BITS)), dtype=np.uint32)


def is_allowed(token: int, bitmask: TokenBitmask) -> bool:
    """Tell whether a bitmask of one row has the token's bit."""
    word, bit = divmod(token, _WORD_BITS)
    return bool(int(bitmask[word]) >> bit & 1)
