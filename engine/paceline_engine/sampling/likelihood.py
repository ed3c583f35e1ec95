"""How likely the model finds tokens: log-probabilities, ranks and the best alternatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.sampling.chosen import likelihood_of
from paceline_wire import Likelihood


def likelihoods(
    logits: Tensor,  # [rows, vocab]
    token_ids: Sequence[int],  # [rows]
    num_top: Sequence[int],  # [rows]
) -> list[Likelihood]:
    """Tell of one known token per row, and of the row's `num_top` likeliest ones."""
    chosen = torch.tensor(token_ids, device=logits.device)
    numbers: list[list[float]] = paceline_kernels.token_likelihoods(
        logits, chosen, max(num_top)
    ).tolist()
    return [likelihood_of(*each) for each in zip(token_ids, numbers, num_top, strict=True)]
