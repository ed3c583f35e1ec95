"""Token bitmasks of constrained rows, computed while the model computes their scores."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.constraint import Constraint, TokenBitmask, empty_bitmasks
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import to_device
from paceline_engine.errors import BadConstraint
from paceline_engine.hardware.placing import leave_core

# Of its thread's own time, so that a busy machine refuses nobody. A matcher gives up by itself at
# half of it, unless a single mask goes beyond.
_MOST_MASK_S = 0.1
_LOOK_EVERY_S = 0.02
_MOST_THREADS = 4
_WHAT = "structured output"


class _Mask:
    """One row's mask, which a thread computes."""

    def __init__(
        self, row: int, request: Request, constraint: Constraint, bitmask: TokenBitmask
    ) -> None:
        self.row = row
        self.request = request
        self._constraint = constraint
        self._bitmask = bitmask
        self._clock: tuple[int, float] | None = None
        """The thread's clock, and what it showed at the start."""
        self.done: Future[None]

    def fill(self) -> None:
        """Run in a thread of the pool."""
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._clock = clock, time.clock_gettime(clock)
        output_ids = self.request.token_ids[self.request.num_prompt_tokens :]
        self._constraint.fill_bitmask(output_ids, self._bitmask)

    @property
    def is_stuck(self) -> bool:
        """Whether it has taken more than it may and is not done."""
        if self._clock is None or self.done.done():
            return False
        clock, started = self._clock
        return time.clock_gettime(clock) - started > _MOST_MASK_S


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """The masks of one step, one for each constrained row."""

    masks: list[_Mask]
    bitmasks: TokenBitmask
    give_up: Callable[[], None]
    """Leave the threads that are stuck to themselves."""

    def apply(self, scores: Tensor, places: Sequence[int]) -> None:  # [asking, vocab]
        """Rule out every other token; `places` are the rows of the step that `scores` are of.

        Raises `BadConstraint` for a grammar that costs too much.
        """
        self._wait()
        for mask in self.masks:
            # A RuntimeError: it was given up before, and its matcher is still at work.
            if isinstance(error := mask.done.exception(), ValueError | RuntimeError):
                raise BadConstraint(mask.request.id, f"{_WHAT}: {error}") from error
            mask.done.result()
        number_of = {place: number for number, place in enumerate(places)}
        rows = np.array([number_of[mask.row] for mask in self.masks])
        words = to_device(self.bitmasks.view("int32"), scores.device)
        paceline_kernels.forbid(scores, to_device(rows, scores.device), words)

    def _wait(self) -> None:
        """Until all are done; once one is stuck, what waits behind it is called off."""
        pending = {mask.done for mask in self.masks}
        stuck: list[_Mask] = []
        while not pending <= {mask.done for mask in stuck}:
            _, pending = wait(pending, timeout=_LOOK_EVERY_S)
            stuck += [mask for mask in self.masks if mask.is_stuck and mask not in stuck]
            if stuck:
                pending = {future for future in pending if not future.cancel()}
        if stuck:
            self.give_up()
            raise BadConstraint(stuck[0].request.id, f"{_WHAT}: the grammar is too complex")


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
        bitmasks = empty_bitmasks(len(held), vocab_size)
        masks = [
            _Mask(row, request, constraint, bitmasks[place])
            for place, (row, request, constraint) in enumerate(held)
        ]
        for mask in masks:
            mask.done = self._threads().submit(mask.fill)
        return PendingMasks(masks, bitmasks, self._give_up)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            count = min(torch.get_num_threads(), _MOST_THREADS)
            self._pool = ThreadPoolExecutor(count, "paceline-mask", initializer=leave_core)
        return self._pool

    def _give_up(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
