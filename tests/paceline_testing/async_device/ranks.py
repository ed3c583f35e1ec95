"""Two ranks of one model on the device: each has a stream, and goes on where both have come.

The second one's host hears of a step as soon as it is told, or as late as when the first one waits
for the device: both are orders that two processes may have.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.step_tensors import Int64s
from paceline_engine.model.group import Group
from paceline_engine.runner.model_runner import ModelRunner
from paceline_testing.async_device.device import AsyncDevice
from paceline_testing.async_device.streams import Meet
from paceline_testing.async_device.tensors import DeviceTensor
from paceline_testing.async_device.work import Work

Join = Callable[[Sequence[Tensor]], Tensor]
"""Makes what every rank has after, of what they have before."""
_SIZE = 2


class _Meeting:
    """One place where both come."""

    def __init__(self) -> None:
        self.brought: dict[int, Tensor] = {}
        self.has_come = [Work(_nothing) for _ in range(_SIZE)]


class TwoRanks:
    """Their groups, the messages, and where they meet."""

    def __init__(self, device: AsyncDevice) -> None:
        """Until `follower` is set, a rank is alone: sums leave tensors as they are."""
        self.follower: ModelRunner | None = None
        self.is_late = False
        self.groups = [_OnDevice(rank, self) for rank in range(_SIZE)]
        self.streams = [device.stream, device.stream_type()]
        self.heard: deque[Int64s | None] = deque()
        self._device = device
        self._is_following = False
        self._num_met = [0] * _SIZE
        self._meetings: dict[int, _Meeting] = {}
        device.before_waiting = self.catch_up

    def tell(self, message: Int64s | None) -> None:
        """Hand on what rank 0 tells."""
        if self.follower is not None:
            self.heard.append(message)
            if not self.is_late:
                self.catch_up()

    def catch_up(self) -> None:
        """Let rank 1 do what it has been told of."""
        if self.follower is None or self._is_following:
            return
        self._is_following = True
        try:
            with torch.cuda.stream(self.streams[1]):
                self.follower.follow()
        finally:
            self._is_following = False

    def meet(self, rank: int, x: Tensor, join: Join) -> None:
        """Queue one rank's part on its stream, or note it in the graph that is captured."""
        assert isinstance(x, DeviceTensor)
        queue = partial(self._queue, rank, x.numbers, join)
        if self._device.captured is not None:
            self._device.captured.append(Meet(queue))
        elif self.follower is not None:
            queue()

    def _queue(self, rank: int, x: Tensor, join: Join) -> None:
        meeting = self._meetings.setdefault(self._num_met[rank], _Meeting())
        self._num_met[rank] += 1
        stream = self.streams[rank]

        def come() -> None:
            meeting.brought[rank] = x.clone()
            meeting.has_come[rank].is_done = True

        self._device.add(come, stream=stream)
        last = stream.queue.last
        meeting.has_come[rank].needs = () if last is None else (last,)

        def go_on() -> None:
            x.copy_(join([meeting.brought[each] for each in range(_SIZE)]))

        self._device.add(go_on, *meeting.has_come, stream=stream)


class _OnDevice(Group):
    """Stands for a group of two processes."""

    def __init__(self, rank: int, ranks: TwoRanks) -> None:
        super().__init__(rank, _SIZE)
        self._ranks = ranks

    def sum_(self, x: Tensor) -> Tensor:
        """See `Group`."""
        self._ranks.meet(self.rank, x, _added)
        return x

    def share_(self, x: Tensor) -> Tensor:
        """See `Group`."""
        self._ranks.meet(self.rank, x, lambda brought: brought[0])
        return x

    def least(self, value: int) -> int:
        """See `Group`."""
        return value

    def tell(self, what: Sequence[Int64s]) -> None:
        """See `Group`."""
        self._ranks.tell(np.concatenate(what) if len(what) else None)

    def hear(self) -> Int64s | None:
        """See `Group`; None as well where nothing has been told yet."""
        return self._ranks.heard.popleft() if self._ranks.heard else None


def _nothing() -> None: ...


def _added(brought: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(brought)).sum(0)
