"""How likely the model finds the tokens of a prompt, chunk by chunk as they are computed."""

from collections.abc import Callable

from torch import Tensor

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.sampling.likelihood import likelihoods

# Scores of this many tokens lie in memory at once: 128 of a vocabulary of 150,000 are 77 MB.
_TOKENS_AT_ONCE = 128


def score_prompts(
    batch: Batch,
    hidden: Tensor,  # [tokens of the batch, hidden]
    logits: Callable[[Tensor], Tensor],  # [n, hidden] -> [n, vocab]
) -> None:
    """Extend `prompt_likelihoods` of the requests that ask for them."""
    prefills = batch.chunks[batch.num_decodes :]
    offset = batch.num_decodes  # a decode is one token
    for piece in prefills:
        if piece.request.sampling.prompt_logprobs is not None:
            _score(piece, hidden[offset : offset + piece.count], logits)
        offset += piece.count


def _score(piece: ScheduledChunk, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
    request = piece.request
    num_top = request.sampling.prompt_logprobs or 0
    # Token i tells of token i + 1; after a preemption what is known is not told again.
    start = max(piece.start, len(request.prompt_likelihoods))
    end = min(piece.start + piece.count, request.num_prompt_tokens - 1)
    for first in range(start, end, _TOKENS_AT_ONCE):
        last = min(first + _TOKENS_AT_ONCE, end)
        following = request.token_ids[first + 1 : last + 1]
        scores = logits(hidden[first - piece.start : last - piece.start])
        request.prompt_likelihoods += likelihoods(scores, following, [num_top] * len(following))
