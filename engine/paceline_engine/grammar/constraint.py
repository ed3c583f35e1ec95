"""Constraint (Protocol): what an output may be, told token by token."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
"""A bit per token of the vocabulary, lowest bit first."""
_BITS = 32


class Constraint(Protocol):
    """Held by one request; follows its output."""

    def allowed(self, output_ids: Sequence[int], words: Words) -> None:
        """Fill `words` with the tokens that may come after `output_ids`, the whole output so far.

        Raises `ValueError`, in words for a client, when that takes more work than it may.
        """
        ...


def num_words(vocab_size: int) -> int:
    """32-bit words that hold a bit per token."""
    return -(-vocab_size // _BITS)


def no_words(rows: int, vocab_size: int) -> Words:  # [rows, words]
    """No token allowed in any row."""
    return np.zeros((rows, num_words(vocab_size)), dtype=np.uint32)
