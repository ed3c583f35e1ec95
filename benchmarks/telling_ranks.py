"""Processor time of telling another rank of a step, on both sides.

A ring in shared memory beside a pickled broadcast over gloo, as it was before:

    python benchmarks/telling_ranks.py [ROUNDS]

Both run in turn, on the same steps, between two processes; medians of rounds are printed.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from paceline_engine.core.step_tensors import AT_ITS_ROW, RowWrites, StepInputs
from paceline_engine.model.message_ring import MessageRing, RingReader
from paceline_engine.runner.told_step import ToldStep, decode, encode

_STEPS = 200
_KINDS = {"64 decodes": (64, 0), "256 decodes": (256, 0), "a prompt of 2,048": (0, 2048)}
_CPU = torch.device("cpu")


def a_step(decodes: int, prompt: int) -> StepInputs:
    """Make decodes of which some have got a block, and a prompt."""
    sequences = decodes + bool(prompt)
    counts = np.ones(sequences, dtype=np.int64)
    if prompt:
        counts[-1] = prompt
    bounds = np.concatenate(([0], counts.cumsum()))
    runs = max(decodes // 16, 1)
    numbers = np.arange(max(runs, prompt // 16))
    write_bounds = np.linspace(0, len(numbers), runs + 1).astype(np.int64)
    token_ids = np.full(decodes + prompt, AT_ITS_ROW)
    token_ids[decodes:] = 7
    rows = np.arange(sequences)
    writes = RowWrites(np.arange(runs), np.full(runs, 4), write_bounds, numbers)
    return StepInputs(
        num_decodes=decodes,
        rows=rows,
        starts=rows + 1000,
        bounds=bounds,
        token_ids=token_ids,
        writes=writes,
        sample_rows=bounds[1:] - 1,
        sampled=(),
        kept_at=None,
    )


def main(rounds: int) -> None:
    """Print a line for each kind of step."""
    ring = MessageRing(1)
    context = multiprocessing.get_context("spawn")
    heard = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        arguments = (ring.readers[0], rendezvous, heard, rounds)
        follower = context.Process(target=_follow, args=arguments, daemon=True)
        follower.start()
        _meet(0, rendezvous)
        for name, (decodes, prompt) in _KINDS.items():
            step = a_step(decodes, prompt)

            def by_ring(step: StepInputs = step) -> None:
                ring.put(encode(ToldStep("eager", step)), _nobody)

            def by_pickle(step: StepInputs = step) -> None:
                dist.broadcast_object_list([step], src=0, device=_CPU)

            ways: dict[str, Callable[[], None]] = {"pickled": by_pickle, "ring": by_ring}
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, tell in ways.items():
                    times[way].append((_processor_us(tell), heard.get()))
            for way, taken in times.items():
                told, read = (statistics.median(side) for side in zip(*taken, strict=True))
                print(f"{name}, {way}: rank 0 {told:.1f} us, the other {read:.1f} us a step")
        dist.destroy_process_group()
        follower.join()


def _follow(reader: RingReader, rendezvous: str, heard: Any, rounds: int) -> None:
    _meet(1, rendezvous)

    def by_ring() -> None:
        decode(reader.get(_nobody))

    def by_pickle() -> None:
        dist.broadcast_object_list([None], src=0, device=_CPU)

    for _ in range(rounds * len(_KINDS)):
        for hear in (by_pickle, by_ring):
            heard.put(_processor_us(hear))
    dist.destroy_process_group()


def _meet(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(rendezvous, 2)  # type: ignore[attr-defined] # torch exports it without saying so
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


def _processor_us(do: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(_STEPS):
        do()
    return (time.process_time() - began) / _STEPS * 1e6


def _nobody() -> None: ...


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
