"""Peer memory without GPUs: files that the ranks' processes, or threads, map, and signals in them.

It does what torch's kernels do: tell the others, wait for them, add up what they have, tell and
wait again. A rank that goes on early, or writes where others still read, gives wrong sums here too.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

import torch
from torch import Tensor

from paceline_engine.loading import load
from paceline_engine.model.group import Group
from paceline_engine.model.peer_memory import PeerOps

_PATIENCE_S = 60.0

Answer = TypeVar("Answer")


class LostPeerError(RuntimeError):
    """Another rank has not come as far in a minute."""


@dataclass(frozen=True, slots=True)
class FilePeers:
    """Implements `PeerSource` in a folder that all ranks know."""

    folder: Path
    rank: int
    size: int

    def require(self, device: torch.device, num_ranks: int) -> None:
        """See `PeerSource`."""
        assert device.type == "cpu"
        assert num_ranks == self.size

    def allocate(self, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: ARG002 - the port's
        """See `PeerSource`."""
        return self._mapped(f"buffer-{self.rank}", numbers, dtype)

    def meet(self, buffer: Tensor) -> PeerOps:
        """See `PeerSource`."""
        return self.ops(buffer.numel(), buffer.dtype)

    def ops(self, numbers: int, dtype: torch.dtype) -> "FileOps":
        """Map the buffers of all ranks."""
        buffers = [self._mapped(f"buffer-{rank}", numbers, dtype) for rank in range(self.size)]
        signals = self._mapped("signals", self.size * self.size, torch.int64)
        return FileOps(self.rank, buffers, signals.view(self.size, self.size))

    def _mapped(self, name: str, numbers: int, dtype: torch.dtype) -> Tensor:
        return torch.from_file(str(self.folder / name), shared=True, size=numbers, dtype=dtype)


class FileOps:
    """Implements `PeerOps`."""

    calls: ClassVar[list[str]] = []
    """Of all in this process."""

    def __init__(
        self,
        rank: int,
        buffers: list[Tensor],  # [numbers] each
        signals: Tensor,  # [to, of]: how often a rank has told another that it has come
    ) -> None:
        self.rank = rank
        self.turn: Callable[[], None] = os.sched_yield
        """Others may run here."""
        self._buffers = buffers
        self._signals = signals
        self._met = 0

    def one_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`."""
        FileOps.calls.append("one_shot")
        self.meet()
        self.add_up(place, out)
        self.meet()

    def two_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`: each adds up a part in its own buffer, where the others read it."""
        FileOps.calls.append("two_shot")
        self.meet()
        numbers = place.numel()
        bounds = [numbers * rank // len(self._buffers) for rank in range(len(self._buffers) + 1)]
        begin, end = bounds[self.rank], bounds[self.rank + 1]
        summed = torch.stack([each[begin:end] for each in self._buffers]).sum(0)
        self.turn()
        self._buffers[self.rank][begin:end] = summed
        self.meet()
        parts = zip(self._buffers, bounds[:-1], bounds[1:], strict=True)
        out.copy_(torch.cat([each[begin:end] for each, begin, end in parts]).view(place.shape))
        self.meet()

    def add_up(self, place: Tensor, out: Tensor) -> None:
        """Read what every rank has, in the order of ranks."""
        summed = torch.zeros(place.numel(), dtype=place.dtype)
        for each in self._buffers:
            self.turn()
            summed += each[: place.numel()]
        out.copy_(summed.view(place.shape))

    def meet(self) -> None:
        """Tell all others that this rank has come, and wait until they have come as often."""
        self.turn()
        self._met += 1
        self._signals[:, self.rank] = self._met
        deadline = time.monotonic() + _PATIENCE_S
        while int(self._signals[self.rank].min()) < self._met:
            if time.monotonic() > deadline:
                raise LostPeerError(f"rank {self.rank} waits, told {self._signals[self.rank]}")
            self.turn()


def _by_what_ran(one: Callable[[], object]) -> list[float]:
    """Let peers take half of the library's time, and less where they may take two shots."""
    before = len(FileOps.calls)
    one()
    ran = FileOps.calls[before:] or ["library"]
    return [{"library": 2e-6, "one_shot": 1e-6, "two_shot": 0.5e-6}[ran[0]]]


@contextmanager
def file_peers(folder: Path, size: int, rank: int = 0) -> Iterator[None]:
    """Let models on CPUs be loaded with peer memory: this rank's, and those that it starts."""
    follow = partial(_follow, folder, size)
    stand_ins: dict[str, Any] = {
        "TorchPeerSource": lambda: FilePeers(folder, rank, size),
        "GraphTimer": lambda _device, **_: _by_what_ran,
        "_follow": load._follow if rank else follow,
    }
    with ExitStack() as patches:
        for name, stand_in in stand_ins.items():
            patches.enter_context(mock.patch.object(load, name, stand_in))
        yield


def _follow(folder: Path, size: int, group: Group, told: Any, rendezvous: Path) -> None:
    """Live as a rank above 0, in a process of its own."""
    with file_peers(folder, size, group.rank):
        load._follow(group, told, rendezvous)


class Turns:
    """Threads of which one runs at a time; `order` says whose turn is next, then all in turn."""

    def __init__(self, size: int, order: Sequence[int]) -> None:
        self._order = iter(order)
        self._changed = threading.Condition()
        self._running = set(range(size))
        self._size = size
        self._next = 0

    def run(self, ranks: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Run every rank to its end."""
        answers: dict[int, Answer] = {}
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                self._wait(rank)
                answers[rank] = ranks[rank]()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                errors.append(error)
            finally:
                self._leave(rank)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [answers[rank] for rank in range(self._size)]

    def turn(self, rank: int) -> None:
        """Let whoever is next go on."""
        with self._changed:
            self._pass_on()
        self._wait(rank)

    def _wait(self, rank: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._next == rank, _PATIENCE_S):
                raise LostPeerError(f"it was never the turn of rank {rank}")

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._running.discard(rank)
            self._pass_on()

    def _pass_on(self) -> None:
        wanted = next(self._order, (self._next + 1) % self._size)
        after = [(wanted + step) % self._size for step in range(self._size)]
        self._next = next((rank for rank in after if rank in self._running), 0)
        self._changed.notify_all()
