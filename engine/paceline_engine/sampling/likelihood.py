"""How likely the model finds tokens: log-probabilities, ranks and the best alternatives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline_engine.wire import Likelihood


def likelihoods(
    logits: Tensor,  # [rows, vocab]
    token_ids: Sequence[int],  # [rows]
    num_top: Sequence[int],  # [rows]
) -> list[Likelihood]:
    """Tell of one token per row, and of the row's `num_top` likeliest ones.

    `logprob(i) = logit(i) - log(sum over j of exp(logit(j)))`, in float32.
    """
    logits = logits.float()
    chosen_ids = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    chosen = logits.gather(1, chosen_ids)
    top, top_ids = logits.topk(max(num_top), dim=-1)
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    # One copy to the host for each kind of number, whatever the number of rows.
    logprobs = (chosen - normaliser).squeeze(1).tolist()
    ranks = ((logits > chosen).sum(dim=-1) + 1).tolist()
    top_logprobs, all_top_ids = (top - normaliser).tolist(), top_ids.tolist()
    return [
        Likelihood(
            token_id,
            logprobs[row],
            ranks[row],
            all_top_ids[row][: num_top[row]],
            top_logprobs[row][: num_top[row]],
        )
        for row, token_id in enumerate(token_ids)
    ]
