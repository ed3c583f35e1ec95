"""How likely the model finds tokens: log-probabilities, ranks and the best alternatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_engine.sampling.chosen import likelihood_of
from paceline_engine.wire import Likelihood


def numbers_of(logits: Tensor, token_ids: Tensor, most: int) -> Tensor:
    """Of each row [rows, vocab] what its token [rows] and its `most` likeliest ones amount to.

    `[rows, 2 + 2 * most]` in float64, left on the device: the token's log-probability
    `logit - log(sum(exp(logits)))` in float32, its rank from 1, the best log-probabilities, and
    their ids.
    """
    logits = logits.float()
    chosen = logits.gather(1, token_ids.clamp(min=0).unsqueeze(1))
    top, top_ids = logits.topk(most, dim=-1)
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    ranks = (logits > chosen).sum(dim=-1, keepdim=True) + 1
    parts = (chosen - normaliser, ranks, top - normaliser, top_ids)
    return torch.cat([part.double() for part in parts], dim=1)


def likelihoods(
    logits: Tensor,  # [rows, vocab]
    token_ids: Sequence[int],  # [rows]
    num_top: Sequence[int],  # [rows]
) -> list[Likelihood]:
    """Tell of one known token per row, and of the row's `num_top` likeliest ones."""
    chosen = torch.tensor(token_ids, device=logits.device)
    numbers: list[list[float]] = numbers_of(logits, chosen, max(num_top)).tolist()
    return [likelihood_of(*each) for each in zip(token_ids, numbers, num_top, strict=True)]
