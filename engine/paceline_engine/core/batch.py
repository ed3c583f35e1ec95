"""What one step computes (`Batch`), who computes it (`Runner`), and the result (`StepOutput`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from paceline_engine.core.request import Request
from paceline_wire import StepFeatures, TokenLogprobs
from paceline_wire.step_cost import chunk_attention


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
    """Whether it is padding: known tokens computed again to fill the batch; never sampled."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Decode chunks come first, then decodes with drafts, then prefill chunks."""

    chunks: tuple[ScheduledChunk, ...]
    num_decodes: int
    """Chunks of one token that decode."""
    num_drafted: int = 0
    """Chunks with a draft."""
    is_batch_paused: bool = False
    """Whether the decodes of the batch lane leave this step out."""

    @property
    def drafted(self) -> tuple[ScheduledChunk, ...]:
        """The chunks with a draft."""
        return self.chunks[self.num_decodes : self.num_decodes + self.num_drafted]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_padding(self) -> int:
        """Tokens that the step computes only to fill the batch up."""
        return sum(chunk.count for chunk in self.chunks if chunk.is_padding)

    def features(self, context: int) -> StepFeatures:
        """Return the features of its time; `context` sums the contexts of its decodes.

        Draft tokens are computed as a prompt's are, and count as such.
        """
        num_decodes = self.num_decodes + self.num_drafted
        prompts, drafted = self.chunks[num_decodes:], self.drafted
        draft_tokens = sum(len(chunk.draft) for chunk in drafted)
        return StepFeatures(
            decode=num_decodes,
            prefill=sum(chunk.count for chunk in prompts) + draft_tokens,
            context=context,
            attention=int(sum(chunk_attention(chunk.count, chunk.start) for chunk in prompts))
            + sum(len(chunk.draft) * chunk.start for chunk in drafted),
        )


Next: TypeAlias = int | tuple[int, ...] | None
"""What follows a chunk: one token; with a draft, its accepted tokens and one more; or nothing."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives its requests, all on the host."""

    tokens: Sequence[Next]
    """Aligned with `batch.chunks`; None where the chunk does not sample, or was `late`."""
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    """Logprobs of the sampled tokens, by request id, for those that ask."""
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    """Logprobs of the prompt tokens that the step computed, by request id, for those that ask."""
    embeddings: Mapping[str, bytes] = field(default_factory=dict)
    """Embeddings of the prompts that are complete, by request id, for those that ask."""
    late: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    """Requests whose chunks got no token because their grammar mask was not ready; each with a
    function that tells whether it is ready. They keep their row and blocks."""


class Flight(Protocol):
    """A step in flight."""

    def result(self) -> StepOutput:
        """Wait for the step. Called once, or never where its result is not wanted.

        Raises `RequestError` where one request cannot go on: then nothing of the step counts.
        """
        ...


class Runner(Protocol):
    """Computes steps, one behind the other. Holds the weights and the KV memory."""

    def launch(self, batch: Batch) -> Flight:
        """Start to compute every chunk and to write its KV; on a CPU it is done on return.

        The step before may still be on its way. Where a decode's input token is what that one
        samples (`start` is the number of known tokens), it is taken from where that one leaves it.
        Rows of requests that have ended meanwhile are computed, and their result is dropped.
        Nothing is written into the requests. Raises `RequestError` as `Flight.result`.
        """
        ...
