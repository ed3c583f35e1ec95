"""One rank of several whose others are not there: what they would send is never waited for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline_engine.core.step_tensors import Int64s
from paceline_engine.model.group import Group

Told = list[Int64s | None]
"""What rank 0 has told, in order; None where it said that this was all."""


@contextmanager
def ranks_alone(size: int, rank: int = 0, *, heard: Sequence[Int64s | None] = ()) -> Iterator[Told]:
    """Let a group of this size be loaded and run; a sum over them leaves its tensor as it is.

    Rank 0's messages are kept in the list that is given; another rank hears `heard`, then the end.
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
            mock.patch.object(Group, "start"),
            mock.patch.object(Group, "least", lambda _self, value: value),
            mock.patch.object(Group, "tell", tell),
            mock.patch.object(Group, "hear", hear),
        ):
            yield told
    finally:
        dist.destroy_process_group()
