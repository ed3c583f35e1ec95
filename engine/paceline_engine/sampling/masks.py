"""Token bitmasks of constrained rows, computed while the model computes their scores.

A step waits for them a part of its own time and no longer: a row whose mask is not ready sits the
step out. Its mask goes on, and a later step takes it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.constraint import Constraint, TokenBitmask, empty_bitmasks
from paceline_engine.core.request import Request, State
from paceline_engine.core.step_tensors import to_device
from paceline_engine.errors import BadConstraint
from paceline_engine.hardware.placing import leave_core

# Of its thread's own time, so that a busy machine refuses nobody. A matcher gives up by itself at
# half of it, unless a single mask goes beyond.
_MOST_MASK_S = 0.1
# How long a step waits for masks, once it has its scores: a quarter of what it took until then,
# and 5 ms at least (masks take 0.01 to 0.1 ms, the first of 2,000 alternatives 4.6 ms).
_WAIT_SHARE = 0.25
_LEAST_WAIT_S = 0.005
_LOOK_EVERY_S = 0.02
_LEAST_THREADS, _MOST_THREADS = 2, 4
_MOST_REMEMBERED = 1024
_WHAT = "structured output"
_EVERY_TOKEN = np.uint32(2**32 - 1)


class _Mask:
    """The next mask of one request, which a thread computes."""

    def __init__(self, request: Request, constraint: Constraint, vocab_size: int) -> None:
        self.request = request
        self.bitmask: TokenBitmask = empty_bitmasks(1, vocab_size)[0]
        self.num_output = request.num_output_tokens
        self._constraint = constraint
        self.took_s = 0.0
        """Of its thread's own time, once it is done."""
        self._clock: tuple[int, float] | None = None
        """The thread's clock, and what it showed at the start."""
        self.done: Future[None]

    def fill(self) -> None:
        """Run in a thread of the pool."""
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._clock = clock, time.clock_gettime(clock)
        output_ids = self.request.token_ids[self.request.num_prompt_tokens :]
        self._constraint.fill_bitmask(output_ids, self.bitmask)
        self.took_s = self._so_far_s(self._clock)

    @property
    def is_stuck(self) -> bool:
        """Whether it has taken more than it may and is not done."""
        if self._clock is None or self.done.done():
            return False
        return self._so_far_s(self._clock) > _MOST_MASK_S

    def is_ready(self) -> bool:
        """Tell whether a step need not wait for it: it is done, called off or stuck."""
        return self.done.done() or self.is_stuck

    @staticmethod
    def _so_far_s(clock: tuple[int, float]) -> float:
        number, started = clock
        return time.clock_gettime(number) - started


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """The masks of one step, one for each constrained row."""

    masks: list[tuple[int, _Mask]]
    """With the row of the step."""
    has_others: bool
    """Whether the step computes anything else, which would wait for them."""
    maker: "MaskMaker"
    began: float
    late: dict[str, Callable[[], bool]] = field(default_factory=dict)
    """By request: tells when its mask is ready. Its row gets no token in this step."""

    def apply(self, scores: Tensor, places: Sequence[int]) -> None:  # [asking, vocab]
        """Rule out every other token; `places` are the rows of the step that `scores` are of.

        A row whose mask is not ready in time is left as it is, and named in `late`. Raises
        `BadConstraint` for a grammar that costs too much.
        """
        self._wait()
        words = []
        for _, mask in self.masks:
            if not mask.done.done():
                self.late[mask.request.id] = mask.is_ready
                words.append(np.full_like(mask.bitmask, _EVERY_TOKEN))
                continue
            self.maker.take(mask)
            # A RuntimeError: it was given up before, and its matcher is still at work.
            if isinstance(error := mask.done.exception(), ValueError | RuntimeError):
                raise BadConstraint(mask.request.id, f"{_WHAT}: {error}") from error
            mask.done.result()
            words.append(mask.bitmask)
        number_of = {place: number for number, place in enumerate(places)}
        rows = np.array([number_of[row] for row, _ in self.masks])
        bits = to_device(np.stack(words).view("int32"), scores.device)
        paceline_kernels.forbid(scores, to_device(rows, scores.device), bits)

    def _wait(self) -> None:
        """Until all are done or the time is over; with nothing else to do, until one is."""
        pending = {mask.done for _, mask in self.masks}
        now = time.monotonic()
        until = now + max(_LEAST_WAIT_S, _WAIT_SHARE * (now - self.began))
        while pending:
            some_are_done = self.has_others or len(pending) < len(self.masks)
            left_s = until - time.monotonic()
            if some_are_done and left_s <= 0:
                break
            timeout_s = min(_LOOK_EVERY_S, left_s) if some_are_done else _LOOK_EVERY_S
            _, pending = wait(pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
            self._raise_for_stuck()
            if self.maker.has_stuck:
                break  # of a request that sits out: the next step ends it, and frees its thread

    def _raise_for_stuck(self) -> None:
        """Give up one that is stuck; what waits behind it is called off, and begun anew."""
        for _, mask in self.masks:
            if mask.is_stuck:
                self.maker.give_up(mask)
                raise BadConstraint(mask.request.id, f"{_WHAT}: the grammar is too complex")


class MaskMaker:
    """A few threads that work while the device does.

    A request whose mask once took longer than a step waits is computed by threads of its own kind
    from then on: slow masks wait for each other, and no quick one waits behind them. Counted is the
    thread's own time: being late on a busy machine makes nobody slow.
    """

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._begun: dict[str, _Mask] = {}
        """By request: masks that no step has taken yet."""
        self._slow: set[str] = set()

    def begin(
        self, requests: Sequence[Request], vocab_size: int, *, num_chunks: int | None = None
    ) -> PendingMasks | None:
        """Start on the masks of a step; None where no row has a constraint.

        `num_chunks` are all chunks of the step, those that do not sample included.
        """
        held = [
            (row, request, request.constraint)
            for row, request in enumerate(requests)
            if request.constraint is not None
        ]
        if not held:
            return None
        self._forget_finished()
        masks = [
            (row, self._begin(request, constraint, vocab_size)) for row, request, constraint in held
        ]
        has_others = (num_chunks or len(requests)) > len(held)
        return PendingMasks(masks, has_others, self, time.monotonic())

    @property
    def has_stuck(self) -> bool:
        """Whether a mask has taken more than it may, of whichever request."""
        return any(mask.is_stuck for mask in self._begun.values())

    def take(self, mask: _Mask) -> None:
        """Forget a mask that a step has taken; was it slow, the request's next are made apart."""
        self._begun.pop(mask.request.id, None)
        if mask.took_s > _LEAST_WAIT_S:
            self._slow.add(mask.request.id)

    def give_up(self, mask: _Mask) -> None:
        """Leave the threads to themselves; what waits for one is called off."""
        self._begun.pop(mask.request.id, None)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def _begin(self, request: Request, constraint: Constraint, vocab_size: int) -> _Mask:
        mask = self._begun.get(request.id)
        is_of_now = mask is not None and mask.num_output == request.num_output_tokens
        if mask is not None and is_of_now and not mask.done.cancelled():
            return mask
        mask = self._begun[request.id] = _Mask(request, constraint, vocab_size)
        pool = self._threads("slow" if request.id in self._slow else "quick")
        mask.done = pool.submit(mask.fill)
        return mask

    def _threads(self, kind: str) -> ThreadPoolExecutor:
        if kind not in self._pools:
            count = min(max(torch.get_num_threads(), _LEAST_THREADS), _MOST_THREADS)
            count = count if kind == "quick" else count // 2
            name = f"paceline-mask-{kind}"
            self._pools[kind] = ThreadPoolExecutor(count, name, initializer=leave_core)
        return self._pools[kind]

    def _forget_finished(self) -> None:
        for name, mask in list(self._begun.items()):
            if mask.request.state is State.FINISHED:
                del self._begun[name]
                self._slow.discard(name)
        if len(self._slow) > _MOST_REMEMBERED:
            self._slow.clear()
