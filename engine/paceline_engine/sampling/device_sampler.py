"""Sampling beside a GPU: everything is queued there, nothing is waited for.

A draw follows from seed, position and the row's own logits (`paceline_kernels.sampling`). Its
random numbers are others than those of `CpuSampler`, the distribution is the same.
"""

from collections.abc import Sequence

from torch import Tensor

import paceline_kernels
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import SamplingTensors
from paceline_engine.sampling.adjusted_rows import AdjustedRows
from paceline_engine.sampling.adjustments import Adjustments
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.sampler import PreviousTokens, SampledTokens


class DeviceSampler:
    """Implements `Sampler` by kernels."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._adjustments = Adjustments(eos_token_ids)
        self._previous = PreviousTokens()

    def sample(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        masks: PendingMasks | None = None,
        *,
        ahead: Sequence[int] = (),
        parameters: SamplingTensors | None = None,
    ) -> SampledTokens:
        """See `Sampler`."""
        if parameters is None:
            raise TypeError("a sampler on the device must have the rows' parameters, got None")
        adjusted = self._adjusted(logits, requests, ahead, masks)
        if adjusted is not None and len(adjusted.places) == len(requests):
            tokens = paceline_kernels.sample_tokens(adjusted.scores, *parameters)
        else:
            tokens = paceline_kernels.sample_tokens(logits, *parameters)
            if adjusted is not None:
                _resample(tokens, adjusted, parameters)
        return self._sampled(tokens, adjusted, requests)

    def resample(
        self,
        logits: Tensor,  # [rows, vocab]: may be overwritten
        tokens: Tensor,  # [rows]: drawn from them as they are; overwritten
        requests: Sequence[Request],
        masks: PendingMasks | None,
        *,
        ahead: Sequence[int],
        parameters: SamplingTensors,
    ) -> SampledTokens:
        """Sample anew for those rows alone whose requests ask for more than a draw."""
        adjusted = self._adjusted(logits, requests, ahead, masks)
        if adjusted is not None:
            _resample(tokens, adjusted, parameters)
        return self._sampled(tokens, adjusted, requests)

    def _adjusted(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        ahead: Sequence[int],
        masks: PendingMasks | None,
    ) -> AdjustedRows | None:
        if all(each.is_plain for each in requests):
            return None
        return AdjustedRows.take(
            logits,
            requests,
            ahead or (0,) * len(requests),
            masks,
            adjustments=self._adjustments,
            previous=self._previous,
        )

    def _sampled(
        self, tokens: Tensor, adjusted: AdjustedRows | None, requests: Sequence[Request]
    ) -> SampledTokens:
        self._previous.keep(requests, tokens)
        return SampledTokens(tokens, None if adjusted is None else adjusted.logprobs(tokens))


def _resample(tokens: Tensor, adjusted: AdjustedRows, parameters: SamplingTensors) -> None:
    """Put the tokens that the adjusted scores give in the places of those drawn before."""
    of_rows = parameters.at(adjusted.rows)
    tokens[adjusted.rows] = paceline_kernels.sample_tokens(adjusted.scores, *of_rows)
