"""Sums over the GPUs of this machine by message size: peer memory beside NCCL."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch

from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Broken, Figure, Found
from paceline_engine.loading.peer_sums import (
    GraphTimer,
    NoPeerMemoryError,
    PeerSource,
    SecondsOf,
    TorchPeerSource,
    WidestSum,
    timed_ways,
)
from paceline_engine.model.group import Group
from paceline_engine.model.peer_memory import PeerMemory, Way, Ways, ways_of
from paceline_testing.peer_double import FilePeers

NAME = "sum of ranks"
_ROWS, _HIDDEN = 256, 4096
"""Decodes of an 8B model: up to 2 MiB in bfloat16."""
_DRY = (2, 16)

Times = dict[int, dict[Way, float]]


def measure(machine: Machine) -> Iterator[Found]:
    """Give each way's time by bytes; what a way sums wrongly is broken."""
    num_gpus = 2 if machine.is_dry else torch.cuda.device_count()
    size = max((each for each in (2, 4, 8) if each <= num_gpus), default=1)
    if size == 1:
        yield Absent(NAME, "this machine has one GPU, and sums need two")
        return
    group = Group(0, size)
    with tempfile.TemporaryDirectory() as folder:
        told = (Path(folder), machine.is_dry)
        try:
            group.start(_follow, told, lambda _rank: nullcontext())
            yield from _figures(size, *_timed(group, *told))
        except NoPeerMemoryError as why:
            yield Absent(NAME, str(why))
        finally:
            group.kill()


def _figures(size: int, wrong: list[Way], times: Times) -> Iterator[Found]:
    for way in wrong:
        yield Broken(f"{NAME}, {way}", "does not add up what the ranks hold")
    for num_bytes, of_size in times.items():
        for way, seconds in of_size.items():
            by = "NCCL" if way == "library" else way.replace("_", " ")
            name = f"sum of {size} ranks, {num_bytes / 1024:g} KiB, {by}"
            yield Figure(name, 1e6 * seconds, "us", "with a copy" if way != "library" else "")


def _follow(group: Group, told: tuple[Path, bool], rendezvous: Path) -> None:
    """Be a rank above 0, until rank 0 ends it."""
    group.join(rendezvous)
    _timed(group, *told)
    group.leave()


def _timed(group: Group, folder: Path, is_dry: bool) -> tuple[list[Way], Times]:
    device = torch.device("cpu") if is_dry else torch.device("cuda", group.rank)
    seconds_of: SecondsOf = _once
    source: PeerSource = FilePeers(folder, group.rank, group.size)
    widest = WidestSum(*_DRY, torch.float32, device)
    if not is_dry:
        torch.cuda.set_device(device)
        seconds_of, source = GraphTimer(device, in_graph=True), TorchPeerSource()
        widest = WidestSum(_ROWS, _HIDDEN, torch.bfloat16, device)
    memory, ops, times = timed_ways(group, widest, source, seconds_of)
    wrong: list[Way] = []
    for way in ways_of(group.size):
        peers = PeerMemory(memory, ops, Ways(((1 << 30, way),)))
        if not _adds_up(group, widest, peers):
            wrong.append(way)
    return wrong, times


def _adds_up(group: Group, widest: WidestSum, peers: PeerMemory) -> bool:
    """Sum numbers whose sums are exact, all rows and a few."""
    whole = group.size * (group.size + 1) // 2
    for rows in (widest.rows, 1):
        x = torch.full((rows, widest.hidden), group.rank + 1.0)
        summed = peers.sum_(x.to(widest.device, widest.dtype))
        if summed is None or not bool((summed == whole).all()):
            return False
    return True


def _once(one: Callable[[], object]) -> list[float]:
    began = time.perf_counter()
    one()
    return [time.perf_counter() - began]
