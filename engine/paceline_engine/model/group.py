"""The ranks that run one model together, and the messages between them.

Rank 0 is the engine. The others are processes of its own: each loads its shard of the weights,
then runs every step that rank 0 tells of, through a ring in shared memory. Within a step the ranks
meet twice a layer, to add up what attention and the MLP give (torch.distributed: gloo on CPUs,
NCCL on GPUs), and share the tokens that only rank 0's device holds.
"""

import atexit
import contextlib
import multiprocessing
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline_engine.core.step_tensors import Int64s
from paceline_engine.model.message_ring import MessageRing, RingReader
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
        self._ring: MessageRing | None = None
        """Of rank 0."""
        self._reader: RingReader | None = None
        """Of the others."""
        self._before_leaving: list[weakref.WeakMethod[Callable[[], None]]] = []
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

    def share_(self, x: Tensor) -> Tensor:
        """Give every rank what rank 0 holds, in the stream's order: no host waits on a GPU."""
        if self.size > 1:
            dist.broadcast(x, src=0)
        return x

    def least(self, value: int) -> int:
        """Return the smallest value of all ranks."""
        if self.size == 1:
            return value
        values: list[int] = [0] * self.size
        dist.all_gather_object(values, value)
        return min(values)

    def tell(self, what: Sequence[Int64s]) -> None:
        """Send numbers from rank 0 to all others, which need not be ready for them.

        Raises RuntimeError when one of them has died.
        """
        self._require_followers()
        if self._ring is not None:
            self._ring.put(what, self._require_followers)

    def end(self) -> None:
        """Tell from rank 0 that nothing follows for now: `hear` returns None once."""
        self.tell(())

    def hear(self) -> Int64s | None:
        """Receive what rank 0 sends next; None where it says that this was all.

        Raises RuntimeError when rank 0 has died.
        """
        if self._reader is None:
            return None
        heard = self._reader.get(_require_rank_0)
        return heard if len(heard) else None

    def before_leaving(self, forget: Callable[[], None]) -> None:
        """Register a method to call before the connections close, if its object still lives.

        NCCL's end waits until nobody holds a CUDA graph with a sum in it.
        """
        self._before_leaving.append(weakref.WeakMethod(forget))

    def _require_followers(self) -> None:
        for rank, follower in enumerate(self._followers, start=1):
            if not follower.is_alive():
                raise RuntimeError(f"Rank {rank} has ended with status {follower.exitcode}.")

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
        self._ring = MessageRing(self.size - 1)
        # NCCL and symmetric memory meet by the file later, at their first use.
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-ranks-")
        rendezvous = Path(self._folder.name) / "rendezvous"
        for rank, reader in enumerate(self._ring.readers, start=1):
            other = Group(rank, self.size)
            other._reader = reader
            arguments = (other, told, rendezvous)
            follower = spawn.Process(target=follow, args=arguments, daemon=True)
            with placed(rank):
                follower.start()
            self._followers.append(follower)
        self.join(rendezvous)

    def kill(self) -> None:
        """Kill the other ranks without sending them a message: they may no longer receive any."""
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
            with contextlib.suppress(RuntimeError, TimeoutError):  # one died just now, or hangs
                self._end_within(_LEAVE_S)
        for follower in followers:
            follower.join(_LEAVE_S)
            follower.kill()
        self.leave()
        atexit.unregister(self.close)

    def _end_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"a rank has read nothing for {seconds:.0f} s")

        if self._ring is not None:
            self._ring.put((), check)

    def leave(self) -> None:
        """Give up the connections; without it, gloo's threads abort a process that ends."""
        for method in self._before_leaving:
            if (forget := method()) is not None:
                forget()
        self.peers = None
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _require_rank_0() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise RuntimeError("Rank 0 has ended.")
