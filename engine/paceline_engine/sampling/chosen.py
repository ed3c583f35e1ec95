"""What a step's sampling gives: tokens, and what is to be told of them, both left on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline_engine.core.request import Request
from paceline_engine.core.sampling_tensors import Parameters
from paceline_engine.sampling.masks import PendingMasks
from paceline_wire import Likelihood


@dataclass(frozen=True, slots=True)
class Told:
    """The rows whose requests ask how likely their token is."""

    rows: tuple[int, ...]  # [M]
    requests: tuple[Request, ...]  # [M]
    numbers: Tensor  # [M, 2 + 2 * most] of `paceline_kernels.token_likelihoods`

    def tell(self, tokens: Sequence[int], numbers: list[list[float]]) -> None:
        """Set `likelihood` of the requests, once both are on the host."""
        for row, request, found in zip(self.rows, self.requests, numbers, strict=True):
            # A row without a token ends its request: what is told of it does not matter.
            num_top = request.sampling.logprobs or 0
            request.likelihood = likelihood_of(max(tokens[row], 0), found, num_top)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The outcome of one step."""

    tokens: Tensor  # [R] int64; `NOT_A_TOKEN` where the logits are not numbers
    told: Told | None = None

    def on_host(self) -> list[int]:
        """Wait for the tokens, and tell what is to be told."""
        tokens: list[int] = self.tokens.tolist()
        if self.told is not None:
            self.told.tell(tokens, self.told.numbers.tolist())
        return tokens


class Chooser(Protocol):
    """Chooses the next token of every request that samples."""

    def choose(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: Parameters | None = None,
    ) -> Chosen:
        """Pick a token per row of `logits` [rows, vocab], which may be overwritten.

        `masks` are of the rows whose requests have a constraint. `ahead` are the tokens between a
        request's last known one and the row, 0 where empty: guessed ones, of plain requests, or
        the one that the call before has chosen. `parameters` are the rows' where they lie on a
        device, and None on a CPU. Waits for no device but for grammars' masks.
        """
        ...


def likelihood_of(token: int, numbers: Sequence[float], num_top: int) -> Likelihood:
    """Read one row of `paceline_kernels.token_likelihoods`."""
    most = (len(numbers) - 2) // 2
    top_logprobs, top_ids = numbers[2 : 2 + most], numbers[2 + most :]
    return Likelihood(
        token,
        numbers[0],
        int(numbers[1]),
        [int(each) for each in top_ids[:num_top]],
        list(top_logprobs[:num_top]),
    )
