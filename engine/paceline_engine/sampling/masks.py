"""Token bitmasks of constrained rows, computed while the model computes their scores.

A step waits for them a part of its own time and no longer: a row whose mask is not ready sits the
step out. Its mask goes on, and a later step takes it. A row with a draft has a mask for each place
where a token is chosen: behind the last known one, and behind each draft token.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.core.constraint import Constraint, DraftGivenUp, TokenBitmask, empty_bitmasks
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


class _Masks:
    """The next masks of one request, which a thread computes."""

    def __init__(
        self, request: Request, constraint: Constraint, draft: Sequence[int], vocab_size: int
    ) -> None:
        self.request = request
        self.draft = tuple(draft)
        self.bitmasks = empty_bitmasks(1 + len(draft), vocab_size)
        self.num_output = request.num_output_tokens
        self._constraint = constraint
        self.took_s = 0.0
        """CPU seconds of its thread for each mask, once they are done."""
        self._clock: tuple[int, float] | None = None
        """The thread's clock, and what it showed at the start."""
        self.done: Future[None]

    def fill(self) -> None:
        """Run in a thread of the pool."""
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._clock = clock, time.clock_gettime(clock)
        output_ids = self.request.token_ids[self.request.num_prompt_tokens :]
        guide = self.request.guide
        if self.draft and guide is not None:
            guide.fill_bitmasks(output_ids, self.draft, self.bitmasks)
        else:
            self._constraint.fill_bitmask(output_ids, self.bitmasks[0])
        self.took_s = self._so_far_s(self._clock) / len(self.bitmasks)

    def are_of(self, request: Request, draft: Sequence[int]) -> bool:
        """Tell whether they are what a step needs that has this draft, or more than that."""
        is_of_now = self.num_output == request.num_output_tokens
        return is_of_now and self.draft[: len(draft)] == tuple(draft)

    @property
    def is_stuck(self) -> bool:
        """Whether it has taken more than it may and is not done."""
        if self._clock is None or self.done.done():
            return False
        return self._so_far_s(self._clock) > _MOST_MASK_S * len(self.bitmasks)

    def is_ready(self) -> bool:
        """Tell whether a step need not wait for it: it is done, called off or stuck."""
        return self.done.done() or self.is_stuck

    @staticmethod
    def _so_far_s(clock: tuple[int, float]) -> float:
        number, started = clock
        return time.clock_gettime(number) - started


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a step that one request has, one after the other."""

    first: int
    count: int
    masks: _Masks


@dataclass(frozen=True, slots=True)
class PendingMasks:
    """The masks of one step, of all constrained rows."""

    rows: list[_Rows]
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
        words = [self._words(of_request) for of_request in self.rows]
        number_of = {place: number for number, place in enumerate(places)}
        numbers = [
            number_of[place]
            for rows in self.rows
            for place in range(rows.first, rows.first + rows.count)
        ]
        bits = to_device(np.concatenate(words).view("int32"), scores.device)
        paceline_kernels.forbid(scores, to_device(np.array(numbers), scores.device), bits)

    def _words(self, rows: _Rows) -> TokenBitmask:  # [count, words]
        """Take the masks of a request's rows; where there are none yet, leave the rows out."""
        masks = rows.masks
        bitmasks = masks.bitmasks[: rows.count]
        if not masks.done.done():
            self.late[masks.request.id] = masks.is_ready
            return np.full_like(bitmasks, _EVERY_TOKEN)
        self.maker.take(masks)
        error = masks.done.exception()
        if isinstance(error, DraftGivenUp):  # the row runs again, and no draft with it
            self.late[masks.request.id] = masks.is_ready
            return np.full_like(bitmasks, _EVERY_TOKEN)
        # A RuntimeError: it was given up before, and its matcher is still at work.
        if isinstance(error, ValueError | RuntimeError):
            raise BadConstraint(masks.request.id, f"{_WHAT}: {error}") from error
        masks.done.result()
        return bitmasks

    def _wait(self) -> None:
        """Wait for all masks or the time limit; if the step has no other rows, for one mask."""
        pending = {rows.masks.done for rows in self.rows}
        now = time.monotonic()
        until = now + max(_LEAST_WAIT_S, _WAIT_SHARE * (now - self.began))
        while pending:
            some_are_done = self.has_others or len(pending) < len(self.rows)
            left_s = until - time.monotonic()
            if some_are_done and left_s <= 0:
                break
            timeout_s = min(_LOOK_EVERY_S, left_s) if some_are_done else _LOOK_EVERY_S
            _, pending = wait(pending, timeout=timeout_s, return_when=FIRST_COMPLETED)
            self._raise_for_stuck()
            if self.maker.has_stuck:
                break  # a late request's stuck mask: the next step gives it up and frees its thread

    def _raise_for_stuck(self) -> None:
        """Give up a stuck mask; the masks queued behind it are cancelled and started again."""
        for rows in self.rows:
            if rows.masks.is_stuck:
                self.maker.give_up(rows.masks)
                raise BadConstraint(rows.masks.request.id, f"{_WHAT}: the grammar is too complex")


class MaskMaker:
    """Computes masks in a few threads while the device computes the step.

    A request whose mask once took longer than a step waits is computed by threads of its own kind
    from then on: slow masks wait for each other, and no quick one waits behind them. Counted is the
    thread's own time: being late on a busy machine makes nobody slow.
    """

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._begun: dict[str, _Masks] = {}
        """By request: masks that no step has taken yet."""
        self._slow: set[str] = set()

    def begin(
        self,
        requests: Sequence[Request],
        vocab_size: int,
        *,
        drafts: Mapping[str, Sequence[int]] | None = None,
        num_chunks: int | None = None,
    ) -> PendingMasks | None:
        """Start on the masks of a step; None where no row has a constraint.

        `drafts` are those of requests that have one row more for each draft token, `num_chunks`
        all chunks of the step, those that do not sample included.
        """
        held: dict[str, tuple[int, Request, Constraint]] = {}
        for row, request in enumerate(requests):
            if request.constraint is not None:
                held.setdefault(request.id, (row, request, request.constraint))
        if not held:
            return None
        self._forget_finished()
        rows = []
        for first, request, constraint in held.values():
            draft = drafts.get(request.id, ()) if drafts else ()
            masks = self._begin(request, constraint, draft, vocab_size)
            rows.append(_Rows(first, 1 + len(draft), masks))
        has_others = (num_chunks or len(requests)) > len(held)
        return PendingMasks(rows, has_others, self, time.monotonic())

    @property
    def has_stuck(self) -> bool:
        """Whether a mask has taken more than it may, of whichever request."""
        return any(masks.is_stuck for masks in self._begun.values())

    def take(self, masks: _Masks) -> None:
        """Forget masks that a step has taken; were they slow, the request's next are made apart."""
        self._begun.pop(masks.request.id, None)
        if masks.took_s > _LEAST_WAIT_S:
            self._slow.add(masks.request.id)

    def give_up(self, masks: _Masks) -> None:
        """Abandon the threads of stuck masks, and cancel the masks that wait for a thread."""
        self._begun.pop(masks.request.id, None)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()

    def _begin(
        self, request: Request, constraint: Constraint, draft: Sequence[int], vocab_size: int
    ) -> _Masks:
        masks = self._begun.get(request.id)
        if masks is not None and masks.are_of(request, draft) and not masks.done.cancelled():
            return masks
        masks = self._begun[request.id] = _Masks(request, constraint, draft, vocab_size)
        pool = self._threads("slow" if request.id in self._slow else "quick")
        masks.done = pool.submit(masks.fill)
        return masks

    def _threads(self, kind: str) -> ThreadPoolExecutor:
        if kind not in self._pools:
            count = min(max(torch.get_num_threads(), _LEAST_THREADS), _MOST_THREADS)
            count = count if kind == "quick" else count // 2
            name = f"paceline-mask-{kind}"
            self._pools[kind] = ThreadPoolExecutor(count, name, initializer=leave_core)
        return self._pools[kind]

    def _forget_finished(self) -> None:
        for name, masks in list(self._begun.items()):
            if masks.request.state is State.FINISHED:
                del self._begun[name]
                self._slow.discard(name)
        if len(self._slow) > _MOST_REMEMBERED:
            self._slow.clear()
