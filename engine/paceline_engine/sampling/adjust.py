"""What requests ask to change in the model's scores, before a token is chosen.

In this order: `logit_bias`, `repetition_penalty`, `frequency_penalty` and `presence_penalty`, then
the ends that `min_tokens` forbids. Only the tokens concerned are touched. What the host knows goes
to the device through pinned memory; the token on its way is counted there.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.to_device import to_device
from paceline_engine.sampling.history import History, Ints

Asking = Sequence[tuple[int, Request]]
"""Rows of the scores and whose they are."""


def adjust(
    scores: Tensor,  # [rows, vocab] float32, changed in place
    requests: Sequence[Request],  # [rows]
    ahead: Sequence[int],  # [rows]: tokens on their way
    arriving: Tensor,  # [rows] int64: the token on its way, -1 where none is
    eos_token_ids: tuple[int, ...],
) -> None:
    """Change the scores of requests that ask for it."""
    asking = list(enumerate(requests))
    _bias(scores, [each for each in asking if each[1].sampling.logit_bias])
    _penalise(scores, [each for each in asking if _is_penalised(each[1])], arriving)
    _forbid_early_ends(scores, asking, ahead, eos_token_ids)


def _bias(scores: Tensor, asking: Asking) -> None:
    if not asking:
        return
    biases = [request.sampling.logit_bias for _, request in asking]
    rows, ids = _places(
        scores, asking, [np.fromiter(bias, dtype=np.int64, count=len(bias)) for bias in biases]
    )
    values = np.array([value for bias in biases for value in bias.values()], dtype=np.float32)
    scores[rows, ids] += to_device(values, scores.device)


def _is_penalised(request: Request) -> bool:
    sampling = request.sampling
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


def _penalise(scores: Tensor, asking: Asking, arriving: Tensor) -> None:
    """Lower what was met before."""
    if not asking:
        return
    histories = [_history(request) for _, request in asking]
    device = scores.device

    def ints(values: Ints) -> Tensor:
        return to_device(values.astype(np.int32), device)

    def rates(of: Callable[[Request], float]) -> Tensor:
        return to_device(np.array([of(request) for _, request in asking], np.float32), device)

    rows = to_device(np.array([row for row, _ in asking]), device)
    ends = np.cumsum([0, *(len(history.ids) for history in histories)])
    is_all = len(asking) == len(scores)
    penalised = paceline_kernels.penalise(
        scores if is_all else scores[rows],
        ints(np.concatenate([history.ids for history in histories])),
        ints(np.concatenate([history.counts for history in histories])),
        ints(ends),
        arriving[rows],
        rates(lambda request: request.sampling.repetition_penalty),
        rates(lambda request: request.sampling.frequency_penalty),
        rates(lambda request: request.sampling.presence_penalty),
    )
    if not is_all:
        scores[rows] = penalised


def _history(request: Request) -> History:
    history = request.sampler_state
    if not isinstance(history, History):
        history = request.sampler_state = History(request)
    history.follow(request)
    return history


def _places(scores: Tensor, asking: Asking, ids: Sequence[Ints]) -> tuple[Tensor, Tensor]:
    """Row and column of each of `ids`, which are lists of columns, one for each row that asks."""
    rows = np.repeat([row for row, _ in asking], [len(each) for each in ids])
    return to_device(rows, scores.device), to_device(np.concatenate(ids), scores.device)


def _forbid_early_ends(
    scores: Tensor, asking: Asking, ahead: Sequence[int], eos_token_ids: tuple[int, ...]
) -> None:
    """Before `min_tokens`, a token that would end the output cannot be chosen."""
    early = [
        each
        for each in asking
        if each[1].num_output_tokens + ahead[each[0]] < each[1].sampling.min_tokens
    ]
    if not early:
        return
    ends = []
    for _, request in early:
        of_row = request.sampling.stop_token_ids
        of_row += () if request.sampling.ignore_eos else eos_token_ids
        known = [token for token in of_row if 0 <= token < scores.shape[-1]]
        ends.append(np.array(known, dtype=np.int64))
    scores[_places(scores, early, ends)] = -torch.inf
