"""What the step loop asks of the model and the device: a `Runner`, or a `Launcher` to overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from paceline_engine.core.batch import Batch

Next: TypeAlias = int | tuple[int, ...] | None
"""What follows a slice: one token; with a draft the guesses that hold and one more; or nothing."""


class Runner(Protocol):
    """Computes one step and samples. Holds the weights and the KV memory."""

    def run(self, batch: Batch) -> Sequence[Next]:
        """Compute every slice and write its KV; what follows each slice that samples.

        Aligned with `batch.chunks`; None where the slice does not sample. Raises `RequestError`
        where one request cannot go on: then nothing of the step counts.
        """
        ...


class Flight(Protocol):
    """A step on its way."""

    def tokens(self) -> Sequence[Next]:
        """Wait for the step; see `Runner.run`. Called once, or never where nobody wants it."""
        ...


class Launcher(Protocol):
    """Computes steps one behind the other, without the host in between."""

    def launch(self, batch: Batch) -> Flight:
        """Queue a step behind the one before, which may be on its way still.

        Where a decode's input token is what that one samples (`start` is the number of known
        tokens), it is taken from the device. Rows of requests that have ended meanwhile are
        computed, and nobody asks for what comes of them. Raises `RequestError` as `Runner.run`.
        """
        ...


@dataclass(frozen=True, slots=True)
class OnDemand:
    """A `Launcher` that runs a step when its tokens are asked for."""

    runner: Runner

    def launch(self, batch: Batch) -> "OnDemandFlight":
        """Keep the batch."""
        return OnDemandFlight(self.runner, batch)


@dataclass(frozen=True, slots=True)
class OnDemandFlight:
    """A step that has not begun."""

    runner: Runner
    batch: Batch

    def tokens(self) -> Sequence[Next]:
        """Run it."""
        return self.runner.run(self.batch)
