"""Sampling beside a GPU: everything is queued there, nothing is waited for.

A draw follows from seed, position and the row's own logits (`paceline_kernels.sampling`). The
numbers are others than those of `sampler.py`, the distribution is the same.
"""

from collections.abc import Sequence

from torch import Tensor

import paceline_kernels
from paceline_engine.request import Request
from paceline_engine.sampling.before import Before
from paceline_engine.sampling.chosen import Chosen
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.parameters import parameters_of
from paceline_engine.sampling.scores import asked_rows


class DeviceSampler:
    """Implements `Chooser` by kernels."""

    def __init__(self, eos_token_ids: Sequence[int], salt: bytes) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._salt = salt
        """Random per engine run: makes the seeds of requests that bring none."""
        self._before = Before()

    def choose(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
    ) -> Chosen:
        """See `Chooser`."""
        ahead = ahead or (0,) * len(requests)
        asked = asked_rows(
            logits,
            requests,
            ahead,
            masks,
            before=self._before,
            eos_token_ids=self._eos_token_ids,
        )
        parameters = parameters_of(requests, ahead, self._salt, logits.device)
        if asked is None:
            chosen = Chosen(paceline_kernels.sample_tokens(logits, *parameters))
        elif len(asked.places) == len(requests):
            tokens = paceline_kernels.sample_tokens(asked.scores, *parameters)
            chosen = Chosen(tokens, asked.told(tokens))
        else:
            tokens = paceline_kernels.sample_tokens(logits, *parameters)
            tokens[asked.rows] = paceline_kernels.sample_tokens(
                asked.scores, *parameters.of(asked.rows)
            )
            chosen = Chosen(tokens, asked.told(tokens))
        self._before.keep(requests, chosen.tokens)
        return chosen
