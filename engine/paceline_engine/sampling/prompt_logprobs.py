"""Logprobs of the tokens of a prompt, chunk by chunk; the device is not waited for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

import paceline_kernels
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.step_tensors import to_device, to_host
from paceline_engine.sampling.sampler import logprobs_of
from paceline_wire import TokenLogprobs

# Scores of this many tokens lie in memory at once: 128 of a vocabulary of 150,000 are 77 MB.
_TOKENS_AT_ONCE = 128

LogitsOf = Callable[[Tensor], Tensor]
"""Hidden states [n, hidden] to logits [n, vocab]."""


def prompt_logprobs(
    batch: Batch,
    hidden: Tensor,  # [tokens of the batch, hidden]
    logits_of: LogitsOf,
) -> dict[str, Callable[[], list[TokenLogprobs]]]:
    """Begin on what this step adds to the prompt logprobs of the requests that ask for them.

    Each function that is returned waits for its request's.
    """
    offset = batch.num_decodes  # a decode is one token
    found: dict[str, Callable[[], list[TokenLogprobs]]] = {}
    for chunk in batch.chunks[batch.num_decodes :]:
        if chunk.request.sampling.prompt_logprobs is not None:
            states = hidden[offset : offset + chunk.count]
            found[chunk.request.id] = partial(_told, tuple(_of_chunk(chunk, states, logits_of)))
        offset += chunk.count
    return found


@dataclass(frozen=True, slots=True)
class _Pending:
    """Logprobs of some tokens on their way to the host."""

    token_ids: Sequence[int]
    num_top: int
    numbers: Callable[[], Tensor]

    def told(self) -> Iterator[TokenLogprobs]:
        numbers: list[list[float]] = self.numbers().tolist()
        for token_id, own in zip(self.token_ids, numbers, strict=True):
            yield logprobs_of(token_id, own, self.num_top)


def _told(parts: Sequence[_Pending]) -> list[TokenLogprobs]:
    return [one for part in parts for one in part.told()]


def _of_chunk(chunk: ScheduledChunk, states: Tensor, logits_of: LogitsOf) -> Iterator[_Pending]:
    request = chunk.request
    num_top = request.sampling.prompt_logprobs or 0
    # Token i gives the logprobs of token i + 1; after a preemption what is known is left out.
    start = max(chunk.start, len(request.prompt_logprobs))
    end = min(chunk.start + chunk.count, request.num_prompt_tokens - 1)
    for first in range(start, end, _TOKENS_AT_ONCE):
        last = min(first + _TOKENS_AT_ONCE, end)
        logits = logits_of(states[first - chunk.start : last - chunk.start])
        token_ids = request.token_ids[first + 1 : last + 1]
        known = to_device(np.array(token_ids, dtype=np.int64), logits.device)
        numbers = paceline_kernels.token_likelihoods(logits, known, num_top)
        yield _Pending(token_ids, num_top, to_host(numbers))
