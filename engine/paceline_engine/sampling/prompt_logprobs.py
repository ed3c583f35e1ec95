"""Logprobs of the tokens of a prompt, chunk by chunk as they are computed."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.batch import Batch, ScheduledChunk
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
) -> dict[str, list[TokenLogprobs]]:
    """Return what this step adds to the prompt logprobs of the requests that ask for them."""
    offset = batch.num_decodes  # a decode is one token
    found = {}
    for chunk in batch.chunks[batch.num_decodes :]:
        if chunk.request.sampling.prompt_logprobs is not None:
            states = hidden[offset : offset + chunk.count]
            found[chunk.request.id] = list(_of_chunk(chunk, states, logits_of))
        offset += chunk.count
    return found


def _of_chunk(
    chunk: ScheduledChunk, states: Tensor, logits_of: LogitsOf
) -> Iterator[TokenLogprobs]:
    request = chunk.request
    num_top = request.sampling.prompt_logprobs or 0
    # Token i gives the logprobs of token i + 1; after a preemption what is known is left out.
    start = max(chunk.start, len(request.prompt_logprobs))
    end = min(chunk.start + chunk.count, request.num_prompt_tokens - 1)
    for first in range(start, end, _TOKENS_AT_ONCE):
        last = min(first + _TOKENS_AT_ONCE, end)
        logits = logits_of(states[first - chunk.start : last - chunk.start])
        yield from _of_tokens(logits, request.token_ids[first + 1 : last + 1], num_top)


def _of_tokens(logits: Tensor, token_ids: Sequence[int], num_top: int) -> Iterator[TokenLogprobs]:
    known = torch.tensor(token_ids, device=logits.device)
    numbers: list[list[float]] = paceline_kernels.token_likelihoods(logits, known, num_top).tolist()
    for token_id, own in zip(token_ids, numbers, strict=True):
        yield logprobs_of(token_id, own, num_top)
