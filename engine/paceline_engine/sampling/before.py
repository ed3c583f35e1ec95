"""The tokens of the step before: on the device, and perhaps not yet known to the host."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.request import Request
from paceline_engine.core.to_device import to_device


class Before:
    """Remembers what was chosen last."""

    def __init__(self) -> None:
        self._requests: Sequence[Request] = ()
        self._tokens = torch.empty(0, dtype=torch.int64)

    def keep(self, requests: Sequence[Request], tokens: Tensor) -> None:
        """Take the tokens [rows] of a step that was just sampled."""
        self._requests, self._tokens = requests, tokens

    def arriving(
        self, requests: Sequence[Request], ahead: Sequence[int], device: torch.device
    ) -> Tensor:  # [rows] int64
        """The token of each request that is on its way; -1 where `ahead` says that none is."""
        if not any(ahead):
            return torch.full((len(requests),), -1, dtype=torch.int64, device=device)
        places = {id(request): place for place, request in enumerate(self._requests)}
        # One more than the last is that of nobody.
        taken = [
            places[id(request)] if coming else len(self._requests)
            for request, coming in zip(requests, ahead, strict=True)
        ]
        with_nobody = torch.cat((self._tokens, self._tokens.new_full((1,), -1)))
        return with_nobody[to_device(np.array(taken, dtype=np.int64), device)]
