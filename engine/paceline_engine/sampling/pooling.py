"""Embeddings: what the model makes of a prompt, pooled over its tokens, chunk by chunk.

Pooled are the states that the head reads, after the last norm: `last` takes that of the last token,
`mean` the mean over all. The result is scaled to length 1.
"""

from dataclasses import dataclass

from torch import Tensor

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request


@dataclass(slots=True)
class _Sum:
    """Of the states of the first `count` tokens."""

    total: Tensor  # [hidden]
    count: int


def pool_prompts(batch: Batch, hidden: Tensor) -> None:  # [tokens of the batch, hidden]
    """Set `embedding` of each request that asks for it when its prompt is complete."""
    offset = batch.num_decodes  # a decode is one token
    for piece in batch.chunks[batch.num_decodes :]:
        if piece.request.sampling.pooling is not None:
            _pool(piece, hidden[offset : offset + piece.count])
        offset += piece.count


def _pool(piece: ScheduledChunk, states: Tensor) -> None:  # [tokens of the piece, hidden]
    request = piece.request
    end = min(piece.start + piece.count, request.num_prompt_tokens)
    if request.sampling.pooling == "mean":
        _add(request, piece.start, states[: end - piece.start])
    if end < request.num_prompt_tokens or request.embedding:
        return
    pooled = request.pooled
    vector = pooled.total if isinstance(pooled, _Sum) else states[end - piece.start - 1].float()
    vector = vector / vector.norm().clamp(min=1e-12)
    request.embedding = vector.cpu().numpy().astype("<f4").tobytes()


def _add(request: Request, start: int, states: Tensor) -> None:
    """Add what is new: after a preemption a prompt is computed again."""
    pooled = request.pooled
    if not isinstance(pooled, _Sum):
        pooled = request.pooled = _Sum(states.new_zeros(states.shape[-1]).float(), 0)
    fresh = states[max(0, pooled.count - start) :]
    pooled.total = pooled.total + fresh.float().sum(dim=0)
    pooled.count += len(fresh)
