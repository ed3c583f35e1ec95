"""Sampling beside a GPU: everything is queued there, nothing is waited for.

A draw follows from seed, position and the row's own logits (`paceline_kernels.sampling`). The
numbers are others than those of `sampler.py`, the distribution is the same.
"""

from collections.abc import Sequence

from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.sampling_tensors import Parameters
from paceline_engine.sampling.before import Before
from paceline_engine.sampling.chosen import Chosen
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.scores import AskedRows, asked_rows


class DeviceSampler:
    """Implements `Chooser` by kernels."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._before = Before()

    def choose(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: Parameters | None = None,
    ) -> Chosen:
        """See `Chooser`."""
        if parameters is None:
            raise TypeError("a sampler on the device must have the rows' parameters, got None")
        asked = self._asked(logits, requests, ahead, masks)
        if asked is None:
            tokens = paceline_kernels.sample_tokens(logits, *parameters)
        elif len(asked.places) == len(requests):
            tokens = paceline_kernels.sample_tokens(asked.scores, *parameters)
        else:
            tokens = _again(paceline_kernels.sample_tokens(logits, *parameters), asked, parameters)
        return self._chosen(tokens, asked, requests)

    def choose_asked(
        self,
        logits: Tensor,  # [rows, vocab]: may be overwritten
        tokens: Tensor,  # [rows]: drawn from them as they are; overwritten
        requests: Sequence[Request],
        masks: PendingMasks | None,
        *,
        ahead: Sequence[int],
        parameters: Parameters,
    ) -> Chosen:
        """Choose anew for the rows alone whose requests ask for more than a draw."""
        asked = self._asked(logits, requests, ahead, masks)
        if asked is not None:
            tokens = _again(tokens, asked, parameters)
        return self._chosen(tokens, asked, requests)

    def _asked(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        ahead: Sequence[int],
        masks: PendingMasks | None,
    ) -> AskedRows | None:
        return asked_rows(
            logits,
            requests,
            ahead or (0,) * len(requests),
            masks,
            before=self._before,
            eos_token_ids=self._eos_token_ids,
        )

    def _chosen(
        self, tokens: Tensor, asked: AskedRows | None, requests: Sequence[Request]
    ) -> Chosen:
        self._before.keep(requests, tokens)
        return Chosen(tokens, None if asked is None else asked.told(tokens))


def _again(tokens: Tensor, asked: AskedRows, parameters: Parameters) -> Tensor:
    """Put the tokens that the asked rows' scores give in the places of those."""
    tokens[asked.rows] = paceline_kernels.sample_tokens(asked.scores, *parameters.of(asked.rows))
    return tokens
