"""The scores of the rows that ask for more than temperature, top-k, top-p and min-p."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.to_device import to_device
from paceline_engine.sampling.adjust import adjust
from paceline_engine.sampling.before import Before
from paceline_engine.sampling.chosen import Told
from paceline_engine.sampling.masks import PendingMasks


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Rows of a step whose requests are not plain, taken out of its logits."""

    places: tuple[int, ...]  # [M]: rows of the step
    rows: Tensor  # [M]: the same, on the device
    requests: tuple[Request, ...]  # [M]
    untouched: Tensor  # [M, vocab]: the logits as the model gave them, where likelihoods are told
    scores: Tensor  # [M, vocab] float32: as the requests want them; of all rows maybe the logits

    def within(self, logits: Tensor) -> Tensor:  # [R, vocab] -> [R, vocab] float32
        """The step's logits with these scores in their places; they are overwritten."""
        if len(self.places) == len(logits):
            return self.scores
        logits = logits.float()
        logits[self.rows] = self.scores
        return logits

    def told(self, tokens: Tensor) -> Told | None:  # [R]
        """What is to be told of a step's tokens; computed, not waited for."""
        asked = [
            (number, place, request)
            for number, (place, request) in enumerate(zip(self.places, self.requests, strict=True))
            if request.sampling.logprobs is not None
        ]
        if not asked:
            return None
        numbers, places, requests = zip(*asked, strict=True)
        device = tokens.device
        logits = self.untouched
        if len(asked) < len(self.places):
            logits = logits[to_device(np.array(numbers), device)]
        most = max(request.sampling.logprobs or 0 for request in requests)
        chosen = tokens[to_device(np.array(places), device)]
        found = paceline_kernels.token_likelihoods(logits, chosen, most)
        return Told(places, requests, found)


def asked_rows(
    logits: Tensor,  # [R, vocab]
    requests: Sequence[Request],  # [R]
    ahead: Sequence[int],  # [R]
    masks: PendingMasks | None,
    *,
    before: Before,
    eos_token_ids: tuple[int, ...],
) -> AskedRows | None:
    """Take out the rows that ask, and adjust their scores; None where none does."""
    places = tuple(row for row, each in enumerate(requests) if not each.is_plain)
    if not places:
        return None
    asking = tuple(requests[row] for row in places)
    coming = [ahead[row] for row in places]
    rows = to_device(np.array(places), logits.device)
    untouched = logits if len(places) == len(logits) else logits[rows]
    is_told = any(each.sampling.logprobs is not None for each in asking)
    scores = untouched.to(torch.float32, copy=is_told)
    adjust(scores, asking, coming, before.arriving(asking, coming, logits.device), eos_token_ids)
    if masks is not None:
        masks.apply(scores, places)
    return AskedRows(places, rows, asking, untouched, scores)
