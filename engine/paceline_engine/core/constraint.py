"""Constraint (Protocol): which tokens may come next, as a bitmask over the vocabulary."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

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


def empty_bitmasks(rows: int, vocab_size: int) -> TokenBitmask:  # [rows, words]
    """Make bitmasks that allow no token."""
    return np.zeros((rows, -(-vocab_size // _WORD_BITS)), dtype=np.uint32)
