"""A back end of somebody else's while it serves: the first call that fails is its last."""

import logging

from torch import Tensor

from paceline_engine.attention.prefill.attention import (
    Cache,
    Chunk,
    PrefillAttention,
    Prompts,
    Scores,
)

_log = logging.getLogger(__name__)


class GuardedPrefill:
    """Implements `PrefillAttention`: another's, and ours from the moment when it raises.

    A GPU whose memory was accessed illegally raises in ours too, and the process ends.
    """

    def __init__(self, other: PrefillAttention, ours: PrefillAttention) -> None:
        self.name, self.needs = other.name, other.needs
        self._other, self._ours = other, ours
        self._has_failed = False

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:
        """See `PrefillAttention`."""
        return not self._has_failed and self._other.serves(chunks)

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:
        """See `PrefillAttention`."""
        return not self._has_failed and self._other.serves_layer(cache, scores)

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """Attend by either."""
        try:
            return self._other(q, cache, prompts, scores)
        except Exception as error:  # noqa: BLE001 - whatever it is, ours serves
            _log.warning(
                "prompts by triton from now on: %s raised %s: %s",
                self.name,
                type(error).__name__,
                str(error).partition("\n")[0],
            )
            self._has_failed = True
            return self._ours(q, cache, prompts, scores)
