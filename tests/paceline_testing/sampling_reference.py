"""What tokens are drawn by, made anew from their requests: what rows must give, too."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import SamplingTensors, seed_of
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.sampler import SampledTokens


def parameters_of(
    requests: Sequence[Request], ahead: Sequence[int], salt: bytes
) -> SamplingTensors:
    """One row for each; `ahead` are the tokens behind its last known one, 0 where empty."""
    samplings = [request.sampling for request in requests]
    coming = ahead or (0,) * len(requests)
    known = [len(request.token_ids) for request in requests]
    return SamplingTensors(
        torch.tensor([_signed(seed_of(request, salt)) for request in requests]),
        torch.tensor([length + more for length, more in zip(known, coming, strict=True)]),
        torch.tensor([each.temperature for each in samplings], dtype=torch.float32),
        torch.tensor([each.top_k for each in samplings], dtype=torch.int32),
        torch.tensor([each.top_p for each in samplings], dtype=torch.float32),
        torch.tensor([each.min_p for each in samplings], dtype=torch.float32),
    )


def _signed(seed: int) -> int:
    """The same 64 bits as int64 has them."""
    return int.from_bytes((seed % (1 << 64)).to_bytes(8, "little"), "little", signed=True)


class AskingSampler:
    """The sampler of a device, told of each request at every call. Implements `Sampler`."""

    def __init__(self, eos_token_ids: Sequence[int], salt: bytes) -> None:
        self._sampler = DeviceSampler(eos_token_ids)
        self._salt = salt

    def sample(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: SamplingTensors | None = None,
    ) -> SampledTokens:
        """See `Sampler`; `parameters` are not looked at."""
        del parameters
        parameters = parameters_of(requests, ahead, self._salt)
        return self._sampler.sample(logits, requests, masks, ahead=ahead, parameters=parameters)
