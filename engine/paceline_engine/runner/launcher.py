"""Steps queued one behind the other on the device. Implements the `Launcher` port.

A step's input token that is not known yet lies on the device, at the row of its request, where the
step before puts what it samples. On a CPU, where nothing is queued, a launch computes the step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline_engine.core.batch import Batch
from paceline_engine.core.flight import Next
from paceline_engine.core.request import Request
from paceline_engine.runner.host_tokens import HostTokens
from paceline_engine.runner.model_runner import ModelRunner, require_tokens


class ModelLauncher:
    """Launches the steps of one `ModelRunner`."""

    def __init__(self, runner: ModelRunner, num_rows: int) -> None:
        self._runner = runner
        self._host_tokens = HostTokens(runner.device, num_rows)

    def launch(self, batch: Batch) -> "ModelFlight | _Done":
        """Queue a step behind the one before, whose tokens need not be known."""
        if batch.num_drafted or batch.num_padding:  # nothing else is on its way then
            return _Done(self._runner.run(batch))
        inputs = self._runner.prepare(batch)
        if not inputs.rows_suffice:
            inputs = replace(inputs, ahead=_ahead(batch))
        chosen = self._runner.sampled(batch, inputs)
        return ModelFlight(batch, inputs.sampled, self._host_tokens.fetch(chosen))


def _ahead(batch: Batch) -> tuple[int, ...]:  # [R]
    """Tokens on their way between the last known one and each that is sampled.

    The host must not have settled a step since the batch was scheduled.
    """
    return tuple(
        [
            piece.start + piece.count - len(piece.request.token_ids)
            for piece in batch.chunks
            if piece.samples
        ]
    )


@dataclass(frozen=True, slots=True)
class ModelFlight:
    """A step on its way."""

    batch: Batch
    sampled: tuple[Request, ...]
    fetch: Callable[[], list[int]]

    def tokens(self) -> list[Next]:
        """Wait for the step; what follows each slice that samples."""
        sampled = self.fetch()
        require_tokens(self.sampled, sampled)
        tokens = iter(sampled)
        return [next(tokens) if piece.samples else None for piece in self.batch.chunks]


@dataclass(frozen=True, slots=True)
class _Done:
    """A step that has run already."""

    given: list[Next]

    def tokens(self) -> list[Next]:
        return self.given
