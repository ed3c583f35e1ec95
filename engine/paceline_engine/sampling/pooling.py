"""Embeddings: the states of a prompt, pooled over its tokens, chunk by chunk.

What is pooled are the states that the head reads, after the last norm: `last` takes that of the
last token, `mean` the mean over all. The result is scaled to length 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from torch import Tensor

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import to_host


@dataclass(slots=True)
class _Sum:
    """The sum of the states of the first `count` tokens."""

    total: Tensor  # [hidden]
    count: int


class Pooling:
    """Pools prompts; keeps the sums of those that are not complete yet."""

    def __init__(self) -> None:
        self._sums: WeakKeyDictionary[Request, _Sum] = WeakKeyDictionary()

    def embeddings(
        self,
        batch: Batch,
        hidden: Tensor,  # [tokens of the batch, hidden]
    ) -> dict[str, Callable[[], bytes]]:
        """Begin on the embedding of each request that asks for one and whose prompt is complete.

        Each function that is returned waits for its request's.
        """
        offset = batch.num_decodes  # a decode is one token
        found: dict[str, Callable[[], bytes]] = {}
        for chunk in batch.chunks[batch.num_decodes :]:
            if chunk.request.sampling.pooling is not None:
                embedding = self._pool(chunk, hidden[offset : offset + chunk.count])
                if embedding is not None:
                    found[chunk.request.id] = embedding
            offset += chunk.count
        return found

    def _pool(
        self,
        chunk: ScheduledChunk,
        states: Tensor,  # [tokens of the chunk, hidden]
    ) -> Callable[[], bytes] | None:
        request = chunk.request
        end = min(chunk.start + chunk.count, request.num_prompt_tokens)
        if request.sampling.pooling == "mean":
            self._add(request, chunk.start, states[: end - chunk.start])
        if end < request.num_prompt_tokens or request.num_output_tokens:
            return None
        pooled = self._sums.get(request)
        vector = states[end - chunk.start - 1].float() if pooled is None else pooled.total
        vector = vector / vector.norm().clamp(min=1e-12)
        return partial(_numbers, to_host(vector))

    def _add(self, request: Request, start: int, states: Tensor) -> None:
        """Add the states that are new: after a preemption a prompt is computed again."""
        pooled = self._sums.get(request)
        if pooled is None:
            pooled = self._sums[request] = _Sum(states.new_zeros(states.shape[-1]).float(), 0)
        fresh = states[max(0, pooled.count - start) :]
        pooled.total = pooled.total + fresh.float().sum(dim=0)
        pooled.count += len(fresh)


def _numbers(vector: Callable[[], Tensor]) -> bytes:
    numbers: bytes = vector().numpy().astype("<f4").tobytes()
    return numbers
