"""How a step is run: a `Runner` launches it, and its `Flight` gives the `StepOutput`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from paceline_engine.core.batch import Batch
from paceline_wire import Likelihood

Next: TypeAlias = int | tuple[int, ...] | None
"""What follows a chunk: one token; with a draft its tokens that hold and one more; or nothing."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives its requests, all on the host."""

    tokens: Sequence[Next]
    """Aligned with `batch.chunks`; None where the chunk does not sample."""
    logprobs: Mapping[str, Likelihood] = field(default_factory=dict)
    """Of the sampled tokens, by request id, for those that ask."""
    prompt_logprobs: Mapping[str, Sequence[Likelihood]] = field(default_factory=dict)
    """Of the prompt tokens that the step computed, by request id, for those that ask."""
    embeddings: Mapping[str, bytes] = field(default_factory=dict)
    """Of the prompts that are complete, by request id, for those that ask."""


class Flight(Protocol):
    """A step on its way."""

    def result(self) -> StepOutput:
        """Wait for the step. Called once, or never where nobody wants it.

        Raises `RequestError` where one request cannot go on: then nothing of the step counts.
        """
        ...


class Runner(Protocol):
    """Computes steps, one behind the other. Holds the weights and the KV memory."""

    def launch(self, batch: Batch) -> Flight:
        """Start to compute every chunk and to write its KV; on a CPU it is done on return.

        The step before may still be on its way. Where a decode's input token is what that one
        samples (`start` is the number of known tokens), it is taken from where that one leaves it.
        Rows of requests that have ended meanwhile are computed, and nobody asks for their result.
        Nothing is written into the requests. Raises `RequestError` as `Flight.result`.
        """
        ...
