"""What requests ask to change in the model's scores, before a token is chosen.

In this order: `logit_bias`, `repetition_penalty`, `frequency_penalty` and `presence_penalty`, then
the ends that `min_tokens` forbids. Only rows that ask for one of these are touched, all of them at
once, and only at the tokens concerned.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline_engine.request import Request
from paceline_engine.sampling.history import History, Ints

Asking = Sequence[tuple[int, Request]]
"""Rows of the scores and whose they are."""


def adjust(logits: Tensor, asking: Asking, eos_token_ids: tuple[int, ...]) -> None:
    """Change `logits` [rows, vocab] in place."""
    _bias(logits, [each for each in asking if each[1].sampling.logit_bias])
    _penalise(logits, [each for each in asking if _is_penalised(each[1])])
    _forbid_early_ends(logits, asking, eos_token_ids)


def _bias(logits: Tensor, asking: Asking) -> None:
    if not asking:
        return
    biases = [request.sampling.logit_bias for _, request in asking]
    rows, ids = _places(
        logits, asking, [np.fromiter(bias, dtype=np.int64, count=len(bias)) for bias in biases]
    )
    values = [value for bias in biases for value in bias.values()]
    logits[rows, ids] += torch.tensor(values, dtype=logits.dtype, device=logits.device)


def _is_penalised(request: Request) -> bool:
    sampling = request.sampling
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


def _penalise(logits: Tensor, asking: Asking) -> None:
    """Lower what was met before: the formulas of OpenAI's API, and of CTRL for repetition."""
    if not asking:
        return
    histories = [_history(request) for _, request in asking]
    rows, ids = _places(logits, asking, [history.ids for history in histories])
    counts = torch.from_numpy(np.concatenate([history.counts for history in histories]))
    counts = counts.to(logits.device)

    def per_token(of: Callable[[Request], float]) -> Tensor:
        values = [of(request) for _, request in asking]
        sizes = [len(history.ids) for history in histories]
        return torch.from_numpy(np.repeat(np.array(values), sizes)).to(logits)

    repetition = per_token(lambda request: request.sampling.repetition_penalty)
    frequency = per_token(lambda request: request.sampling.frequency_penalty)
    presence = per_token(lambda request: request.sampling.presence_penalty)
    scores = logits[rows, ids]
    scores = torch.where(scores > 0, scores / repetition, scores * repetition)
    logits[rows, ids] = scores - frequency * counts - presence * (counts > 0)


def _history(request: Request) -> History:
    history = request.sampler_state
    if not isinstance(history, History):
        history = request.sampler_state = History(request)
    history.follow(request)
    return history


def _places(logits: Tensor, asking: Asking, ids: Sequence[Ints]) -> tuple[Tensor, Tensor]:
    """Row and column of each of `ids`, which are lists of columns, one for each row that asks."""
    rows = np.repeat([row for row, _ in asking], [len(each) for each in ids])
    return (
        torch.from_numpy(rows).to(logits.device),
        torch.from_numpy(np.concatenate(ids)).to(logits.device),
    )


def _forbid_early_ends(logits: Tensor, asking: Asking, eos_token_ids: tuple[int, ...]) -> None:
    """Before `min_tokens`, a token that would end the output cannot be chosen."""
    for row, request in asking:
        sampling = request.sampling
        if request.num_output_tokens >= sampling.min_tokens:
            continue
        ends = sampling.stop_token_ids
        ends += () if sampling.ignore_eos else eos_token_ids
        known = [token for token in ends if 0 <= token < logits.shape[-1]]
        logits[row, known] = -torch.inf
