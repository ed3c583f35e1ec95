"""Changes to the model's scores that requests ask for, before a token is chosen.

In this order: `logit_bias`, `repetition_penalty`, `frequency_penalty` and `presence_penalty`, then
the ends that `min_tokens` forbids. Only the tokens concerned are touched. What the host knows goes
to the device through pinned memory; the token on its way is counted there.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import Int64s, to_device

_Asking: TypeAlias = Sequence[tuple[int, Request]]
"""Rows of the scores, and the request of each."""


class Adjustments:
    """Changes scores, and keeps the histories of the requests that are penalised."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._histories: WeakKeyDictionary[Request, _History] = WeakKeyDictionary()

    def apply(
        self,
        scores: Tensor,  # [rows, vocab] float32, changed in place
        requests: Sequence[Request],  # [rows]
        ahead: Sequence[int],  # [rows]: tokens on their way
        arriving: Tensor,  # [rows] int64: the token on its way, -1 where none is
    ) -> None:
        """Change the scores of the requests that ask for it."""
        asking = list(enumerate(requests))
        _add_biases(scores, [each for each in asking if each[1].sampling.logit_bias])
        self._penalise(scores, [each for each in asking if _is_penalised(each[1])], arriving)
        self._forbid_early_ends(scores, asking, ahead)

    def _penalise(self, scores: Tensor, asking: _Asking, arriving: Tensor) -> None:
        """Lower the scores of tokens that came before."""
        if not asking:
            return
        histories = [self._history(request) for _, request in asking]
        device = scores.device

        def ints(values: Int64s) -> Tensor:
            return to_device(values.astype(np.int32), device)

        def rates(rate_of: Callable[[Request], float]) -> Tensor:
            return to_device(
                np.array([rate_of(request) for _, request in asking], np.float32), device
            )

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

    def _history(self, request: Request) -> "_History":
        history = self._histories.get(request)
        if history is None:
            history = self._histories[request] = _History(request)
        history.follow(request)
        return history

    def _forbid_early_ends(self, scores: Tensor, asking: _Asking, ahead: Sequence[int]) -> None:
        """Forbid the tokens that would end the output before `min_tokens`."""
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
            of_row += () if request.sampling.ignore_eos else self._eos_token_ids
            known = [token for token in of_row if 0 <= token < scores.shape[-1]]
            ends.append(np.array(known, dtype=np.int64))
        scores[_places(scores, early, ends)] = -torch.inf


class _History:
    """The distinct tokens of one request and how often each came; follows its output."""

    def __init__(self, request: Request) -> None:
        counts_prompt = request.sampling.repetition_penalty != 1
        prompt = request.token_ids[: request.num_prompt_tokens] if counts_prompt else []
        distinct = list(dict.fromkeys(prompt))
        self._places = {token: place for place, token in enumerate(distinct)}
        self._size = len(distinct)
        self._ids = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.int64)
        self._num_seen = request.num_prompt_tokens

    def follow(self, request: Request) -> None:
        """Count the tokens that were generated since the last call."""
        for token in request.token_ids[self._num_seen :]:
            place = self._places.get(token)
            if place is None:
                place = self._add(token)
            self._counts[place] += 1
        self._num_seen = len(request.token_ids)

    @property
    def ids(self) -> Int64s:
        """The distinct tokens, of the prompt too where they count."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Int64s:
        """How often the output holds each of `ids`."""
        return self._counts[: self._size]

    def _add(self, token: int) -> int:
        if self._size == len(self._ids):
            # Doubled, so that a token costs the same however long the output.
            more = np.zeros(max(64, self._size), dtype=np.int64)
            self._ids = np.concatenate((self._ids, more))
            self._counts = np.concatenate((self._counts, more))
        place = self._places[token] = self._size
        self._ids[place] = token
        self._size += 1
        return place


def _add_biases(scores: Tensor, asking: _Asking) -> None:
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


def _places(scores: Tensor, asking: _Asking, ids: Sequence[Int64s]) -> tuple[Tensor, Tensor]:
    """Return row and column of each of `ids`: a list of columns for each row that asks."""
    rows = np.repeat([row for row, _ in asking], [len(each) for each in ids])
    return to_device(rows, scores.device), to_device(np.concatenate(ids), scores.device)
