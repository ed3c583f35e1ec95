"""The port of both samplers, what they give, and what they share.

`CpuSampler` samples on a CPU, `DeviceSampler` beside a GPU. Tokens and logprobs stay on the device
until somebody asks for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import SamplingTensors, to_device
from paceline_engine.sampling.masks import PendingMasks
from paceline_wire import TokenLogprobs

NOT_A_TOKEN = -1
"""In place of a token: the logits of the row are not numbers."""

GREEDY_BELOW = 1e-4
"""A temperature below this is greedy: the division would leave the range of float32."""


class HostTokens(NamedTuple):
    """The tokens of a step, and the logprobs that were asked for, on the host."""

    token_ids: list[int]  # [R]
    logprobs: dict[str, TokenLogprobs]
    """The logprobs of the requests that ask for them, by request id."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Logprobs of the rows whose requests ask for them, on the device."""

    rows: tuple[int, ...]  # [M]
    requests: tuple[Request, ...]  # [M]
    numbers: Tensor  # [M, 2 + 2 * most] of `paceline_kernels.token_likelihoods`

    def by_request(
        self, token_ids: Sequence[int], numbers: Sequence[Sequence[float]]
    ) -> dict[str, TokenLogprobs]:
        """Return each request's logprobs; tokens and `numbers` are on the host by now."""
        found = {}
        for row, request, own in zip(self.rows, self.requests, numbers, strict=True):
            # A row without a token ends its request, so its logprobs do not matter.
            num_top = request.sampling.logprobs or 0
            found[request.id] = logprobs_of(max(token_ids[row], 0), own, num_top)
        return found


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The sampled tokens of one step and their logprobs, on the device."""

    token_ids: Tensor  # [R] int64; `NOT_A_TOKEN` where the logits are not numbers
    logprobs: Logprobs | None = None

    def on_host(self) -> HostTokens:
        """Wait for the tokens and the logprobs."""
        token_ids: list[int] = self.token_ids.tolist()
        if self.logprobs is None:
            return HostTokens(token_ids, {})
        numbers = self.logprobs.numbers.tolist()
        return HostTokens(token_ids, self.logprobs.by_request(token_ids, numbers))


class Sampler(Protocol):
    """Chooses the next token of every request that samples."""

    def sample(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: SamplingTensors | None = None,
    ) -> SampledTokens:
        """Choose a token per row of `logits` [rows, vocab], which may be overwritten.

        `masks` are of the rows whose requests have a constraint. `ahead` are the tokens between a
        request's last known one and the row, 0 where empty: the draft's tokens, of requests that
        ask for nothing but a draw and a form, or the one that the call before has chosen.
        `parameters` are those of the rows where they lie on a device, and None on a CPU. Waits for
        no device except for grammars' masks.
        """
        ...


@dataclass(slots=True)
class PreviousTokens:
    """The tokens of the step before: on the device, and perhaps not yet known to the host."""

    requests: Sequence[Request] = ()
    token_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def keep(self, requests: Sequence[Request], token_ids: Tensor) -> None:
        """Take the tokens [rows] of a step that was just sampled."""
        self.requests, self.token_ids = requests, token_ids

    def arriving(
        self, requests: Sequence[Request], ahead: Sequence[int], device: torch.device
    ) -> Tensor:  # [rows] int64
        """Return the token of each request that is on its way; -1 where `ahead` says none is.

        Behind a draft it means nothing: no request with a draft asks for what came before.
        """
        if not any(ahead):
            return torch.full((len(requests),), -1, dtype=torch.int64, device=device)
        places = {id(request): place for place, request in enumerate(self.requests)}
        nobody = len(self.requests)  # index of the -1 that is appended
        taken = [
            places.get(id(request), nobody) if coming else nobody
            for request, coming in zip(requests, ahead, strict=True)
        ]
        with_nobody = torch.cat((self.token_ids, self.token_ids.new_full((1,), -1)))
        return with_nobody[to_device(np.array(taken, dtype=np.int64), device)]


def logprobs_of(token_id: int, numbers: Sequence[float], num_top: int) -> TokenLogprobs:
    """Read one row of `paceline_kernels.token_likelihoods`."""
    most = (len(numbers) - 2) // 2
    top_logprobs, top_ids = numbers[2 : 2 + most], numbers[2 + most :]
    return TokenLogprobs(
        token_id,
        numbers[0],
        int(numbers[1]),
        [int(each) for each in top_ids[:num_top]],
        list(top_logprobs[:num_top]),
    )
