"""One rank of several whose others are not there: what they would send is never waited for."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from paceline_engine.model.group import Group


@contextmanager
def ranks_alone(size: int, rank: int = 0) -> Iterator[None]:
    """Let a group of this size be loaded and run; a sum over them leaves its tensor as it is."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with (
            mock.patch.object(Group, "start"),
            mock.patch.object(Group, "least", lambda _self, value: value),
            mock.patch.object(Group, "tell"),
            mock.patch.object(Group, "hear", return_value=None),
        ):
            yield
    finally:
        dist.destroy_process_group()
