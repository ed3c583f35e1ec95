"""What one step computes: some tokens of some requests."""

from dataclasses import dataclass

from paceline_engine.core.request import Request


# Not frozen: one is made per row and step, and freezing cost a quarter of a step's host time
# (0.51 against 0.39 ms with 256 rows, benchmarks/host.py).
@dataclass(slots=True)
class ScheduledChunk:
    """Tokens `[start, start + count)` of one request; their KV slots are already allocated.

    Never changed once made.
    """

    request: Request
    start: int
    count: int
    samples: bool
    """The chunk ends at the request's last known token, so the step gives it a next token."""
    is_decode: bool
    """One token, after the whole prompt was computed; behind it a draft, if there is one."""
    draft: tuple[int, ...] = ()
    """Draft tokens after the last known one: they are computed too, and count in `count`."""
    is_padding: bool = False
    """Computed to fill the batch up, from tokens that are known already; nothing comes of it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Decode chunks come first, then decodes with drafts, then prefill chunks."""

    chunks: tuple[ScheduledChunk, ...]
    num_decodes: int
    """Chunks of one token that decode."""
    num_drafted: int = 0
    """Chunks with a draft."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_padding(self) -> int:
        """Tokens that the step computes only to fill the batch up."""
        return sum(chunk.count for chunk in self.chunks if chunk.is_padding)
