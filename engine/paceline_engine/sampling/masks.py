"""Which tokens each constrained row may take, computed while the model computes its scores."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.constraint import Constraint, Words
from paceline_engine.errors import BadConstraint
from paceline_engine.grammar import no_words
from paceline_engine.request import Request

# The step waits for a mask as long as it has taken until then, and at least this long.
_LEAST_PATIENCE_S = 0.25
_MOST_THREADS = 4
_WHAT = "structured output"


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """The masks of one step, one for each constrained row."""

    rows: list[int]
    requests: list[Request]
    words: Words
    done: list[Future[None]]
    started: float

    def apply(self, logits: Tensor) -> None:  # [rows of the step, vocab]
        """Rule out every other token; raises `BadConstraint` for a grammar that costs too much."""
        patience_s = max(_LEAST_PATIENCE_S, time.monotonic() - self.started)
        wait(self.done, timeout=patience_s)
        for request, future in zip(self.requests, self.done, strict=True):
            if not future.done():
                raise BadConstraint(request.id, f"{_WHAT}: the grammar is too complex")
            # A RuntimeError: the last step gave up waiting, and the mask is still at work.
            if isinstance(error := future.exception(), ValueError | RuntimeError):
                raise BadConstraint(request.id, f"{_WHAT}: {error}") from error
            future.result()
        allowed = _unpacked(torch.from_numpy(self.words.view("int32")).to(logits.device))
        rows = torch.tensor(self.rows, device=logits.device)
        allowed = allowed[:, : logits.shape[-1]]
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


class MaskMaker:
    """A few threads that work while the device does."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, requests: Sequence[Request], vocab_size: int) -> PendingMasks | None:
        """Start on the masks of a step; None where no row has a constraint."""
        held = [
            (row, request, request.constraint)
            for row, request in enumerate(requests)
            if request.constraint is not None
        ]
        if not held:
            return None
        words = no_words(len(held), vocab_size)
        done = [
            self._threads().submit(_fill, request, constraint, words[place])
            for place, (_, request, constraint) in enumerate(held)
        ]
        rows = [row for row, _, _ in held]
        return PendingMasks(
            rows, [request for _, request, _ in held], words, done, time.monotonic()
        )

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            cores = len(os.sched_getaffinity(0))
            self._pool = ThreadPoolExecutor(min(cores, _MOST_THREADS), "paceline-mask")
        return self._pool


def _fill(request: Request, constraint: Constraint, words: Words) -> None:
    constraint.allowed(request.token_ids[request.num_prompt_tokens :], words)


def _unpacked(words: Tensor) -> Tensor:  # [rows, words] of int32 -> [rows, words * 32] of bool
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> bits) & 1).bool().flatten(1)
