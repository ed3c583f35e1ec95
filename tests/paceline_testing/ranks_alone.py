"""One rank of several whose others are not there: what they would send is never waited for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline_engine.core.step_tensors import Int64s
from paceline_engine.loading import peer_sums
from paceline_engine.loading.peer_sums import GraphTimer
from paceline_engine.model.group import Group
from paceline_engine.model.peer_memory import TorchPeerOps

Told = list[Int64s | None]
"""What rank 0 has told, in order; None where it said that this was all."""


@contextmanager
def ranks_alone(
    size: int, rank: int = 0, *, nvlink: bool = False, heard: Sequence[Int64s | None] = ()
) -> Iterator[Told]:
    """Let a group of this size be loaded and run; a sum over them leaves its tensor as it is.

    Rank 0's messages are kept in the list that is given; another rank hears `heard`, then the end.
    `nvlink`: their GPUs read each other's memory, and sum through it in half of NCCL's time.
    """
    told: Told = []
    messages = iter(heard)

    def tell(_self: Group, what: Sequence[Int64s]) -> None:
        told.append(np.concatenate(what) if len(what) else None)

    def hear(_self: Group) -> Int64s | None:
        return next(messages, None)

    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with (
            mock.patch.object(peer_sums, "_nvlinks", return_value=_links(size, 18 * nvlink)),
            _peer_memory() if nvlink else nullcontext(),
            mock.patch.object(Group, "start"),
            mock.patch.object(Group, "least", lambda _self, value: value),
            mock.patch.object(Group, "tell", tell),
            mock.patch.object(Group, "hear", hear),
        ):
            yield told
    finally:
        dist.destroy_process_group()


def _links(size: int, count: int) -> list[list[int]]:
    return [[count if one != other else 0 for other in range(size)] for one in range(size)]


@contextmanager
def _peer_memory() -> Iterator[None]:
    timed, one_shot, two_shot = GraphTimer.__call__, TorchPeerOps.one_shot, TorchPeerOps.two_shot
    shots: list[str] = []

    def seconds_of(timer: GraphTimer, one: Callable[[], object]) -> list[float]:
        shots.clear()
        seconds = timed(timer, one)
        return [each / (2 if shots else 1) for each in seconds]

    def empty(numbers: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(numbers, dtype=dtype, device=device)

    def noted_one_shot(ops: TorchPeerOps, place: Tensor, out: Tensor) -> None:
        shots.append("one")
        one_shot(ops, place, out)

    def noted_two_shot(ops: TorchPeerOps, place: Tensor, out: Tensor) -> None:
        shots.append("two")
        two_shot(ops, place, out)

    stand_ins: list[AbstractContextManager[Any]] = [
        mock.patch.object(symmetric_memory, "empty", empty),
        mock.patch.object(symmetric_memory, "rendezvous"),
        mock.patch.object(GraphTimer, "__call__", seconds_of),
        mock.patch.object(TorchPeerOps, "one_shot", noted_one_shot),
        mock.patch.object(TorchPeerOps, "two_shot", noted_two_shot),
    ]
    with ExitStack() as held:
        for each in stand_ins:
            held.enter_context(each)
        yield
