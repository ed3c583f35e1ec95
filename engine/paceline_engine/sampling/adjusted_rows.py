"""The rows of a step that ask for more than temperature, top-k, top-p and min-p."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import to_device
from paceline_engine.sampling.adjustments import Adjustments
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.sampler import Logprobs, PreviousTokens


@dataclass(frozen=True, slots=True)
class AdjustedRows:
    """Rows of a step whose requests are not plain, taken out of its logits."""

    places: tuple[int, ...]  # [M]: rows of the step
    rows: Tensor  # [M]: the same, on the device
    requests: tuple[Request, ...]  # [M]
    untouched: Tensor  # [M, vocab]: the logits as the model gave them, for logprobs
    scores: Tensor  # [M, vocab] float32: as the requests want them; of all rows maybe the logits

    @classmethod
    def take(
        cls,
        logits: Tensor,  # [R, vocab]
        requests: Sequence[Request],  # [R]
        ahead: Sequence[int],  # [R]
        masks: PendingMasks | None,
        *,
        adjustments: Adjustments,
        previous: PreviousTokens,
    ) -> "AdjustedRows":
        """Take out the rows that are not plain, at least one, and adjust their scores."""
        places = tuple(row for row, each in enumerate(requests) if not each.is_plain)
        asking = tuple(requests[row] for row in places)
        coming = [ahead[row] for row in places]
        rows = to_device(np.array(places), logits.device)
        untouched = logits if len(places) == len(logits) else logits[rows]
        wants_logprobs = any(each.sampling.logprobs is not None for each in asking)
        scores = untouched.to(torch.float32, copy=wants_logprobs)
        arriving = previous.arriving(asking, coming, logits.device)
        adjustments.apply(scores, asking, coming, arriving)
        if masks is not None:
            masks.apply(scores, places)
        return cls(places, rows, asking, untouched, scores)

    def within(self, logits: Tensor) -> Tensor:  # [R, vocab] -> [R, vocab] float32
        """Return the step's logits with these scores in their places; they are overwritten."""
        if len(self.places) == len(logits):
            return self.scores
        logits = logits.float()
        logits[self.rows] = self.scores
        return logits

    def logprobs(self, token_ids: Tensor) -> Logprobs | None:  # [R]
        """Compute the logprobs that are asked for, without waiting for them."""
        asked = [
            (number, place, request)
            for number, (place, request) in enumerate(zip(self.places, self.requests, strict=True))
            if request.sampling.logprobs is not None
        ]
        if not asked:
            return None
        numbers, places, requests = zip(*asked, strict=True)
        device = token_ids.device
        logits = self.untouched
        if len(asked) < len(self.places):
            logits = logits[to_device(np.array(numbers), device)]
        most = max(request.sampling.logprobs or 0 for request in requests)
        chosen = token_ids[to_device(np.array(places), device)]
        found = paceline_kernels.token_likelihoods(logits, chosen, most)
        return Logprobs(places, requests, found)
