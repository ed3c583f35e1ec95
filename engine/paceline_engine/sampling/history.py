"""Which tokens a request has met, and how often: what its penalties are counted from."""

from typing import Any, TypeAlias

import numpy as np

from paceline_engine.core.request import Request

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class History:
    """The distinct tokens of one request; follows its output token by token."""

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
    def ids(self) -> Ints:
        """The distinct tokens, of the prompt too where they count."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Ints:
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
