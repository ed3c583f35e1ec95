"""The ranks that run one model together, and the messages between them.

Rank 0 is the engine. The others are processes of its own: each loads its shard of the weights,
then runs every step that rank 0 tells of. Within a step the ranks meet twice a layer, to add up
what attention and the MLP give (torch.distributed: gloo on CPUs, NCCL on GPUs).
"""

import atexit
import contextlib
import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline_engine.model.peer_memory import PeerMemory

Step = TypeVar("Step")

# A follower waits as long as nothing is asked of the engine.
_PATIENCE = timedelta(days=365)
# Rank 0 waits for others that are at work. gloo mostly notices at once that a peer has died, but
# a send that begins while the connection is being given up may wait to the end of its time.
_MEETING = timedelta(minutes=5)
_LEAVE_S = 60.0


class Group:
    """This process's place among the ranks."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.peers: PeerMemory | None = None
        """Memory that ranks read of each other, once it is there."""
        self._followers: list[BaseProcess] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def sum_(self, x: Tensor) -> Tensor:
        """Add up what every rank holds, in place unless `x` lies in `peers`; return the sum."""
        if self.size == 1:
            return x
        summed = None if self.peers is None else self.peers.sum_(x)
        if summed is None:
            dist.all_reduce(x)
            return x
        return summed

    def least(self, value: int) -> int:
        """Return the smallest value of all ranks."""
        if self.size == 1:
            return value
        values: list[int] = [0] * self.size
        dist.all_gather_object(values, value)
        return min(values)

    def tell(self, what: object) -> None:
        """Send from rank 0 to all others; None ends them.

        Raises RuntimeError when one of them has died.
        """
        for rank, follower in enumerate(self._followers, start=1):
            if not follower.is_alive():
                raise RuntimeError(f"Rank {rank} has ended with status {follower.exitcode}.")
        if self.size > 1:
            dist.broadcast_object_list([what], src=0, device=torch.device("cpu"))

    def hear(self) -> object:
        """Receive what rank 0 sends next."""
        told: list[object] = [None]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        return told[0]

    def join(self, rendezvous: Path) -> None:
        """Meet the other ranks."""
        store = dist.FileStore(str(rendezvous), self.size)  # type: ignore[attr-defined] # torch exports it without saying so
        store.set_timeout(_MEETING)  # a rank that dies before it is there is noticed by this alone
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=_PATIENCE if self.rank else _MEETING,
        )
        self.least(0)  # all are there

    def start(
        self,
        follow: Callable[["Group", Step, Path], None],
        told: Step,
        placed: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """Start the other ranks, each with `follow`, and meet them; rank 0 calls it.

        A rank's process starts inside `placed(rank)` and inherits what holds there.
        """
        atexit.register(self.close)
        spawn = multiprocessing.get_context("spawn")
        # NCCL and symmetric memory meet by the file later, at their first use.
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-ranks-")
        rendezvous = Path(self._folder.name) / "rendezvous"
        for rank in range(1, self.size):
            arguments = (Group(rank, self.size), told, rendezvous)
            follower = spawn.Process(target=follow, args=arguments, daemon=True)
            with placed(rank):
                follower.start()
            self._followers.append(follower)
        self.join(rendezvous)

    def kill(self) -> None:
        """End the other ranks without a word: they may not listen."""
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.kill()
        if followers:
            self.leave()
            atexit.unregister(self.close)

    def close(self) -> None:
        """End the other ranks; once is enough."""
        followers, self._followers = self._followers, []
        if not followers:
            return
        if all(follower.is_alive() for follower in followers):
            with contextlib.suppress(RuntimeError):  # one died just now
                self.tell(None)
        for follower in followers:
            follower.join(_LEAVE_S)
            follower.kill()
        self.leave()
        atexit.unregister(self.close)

    def leave(self) -> None:
        """Give up the connections; without it, gloo's threads abort a process that ends."""
        self.peers = None
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
