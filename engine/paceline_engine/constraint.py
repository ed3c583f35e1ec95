"""Constraint (Protocol): what an output may be, told token by token."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
"""A bit per token of the vocabulary, lowest bit first."""


class Constraint(Protocol):
    """Held by one request; follows its output."""

    def allowed(self, output_ids: Sequence[int], words: Words) -> None:
        """Fill `words` with the tokens that may come after `output_ids`, the whole output so far.

        Raises `ValueError`, in words for a client, when that takes more work than it may.
        """
        ...
