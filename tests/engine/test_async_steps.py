"""What the engine does between host and device, on one that runs its work late and out of order.

Each part gives what it gives where everything runs at once. With a wait, an event or a buffer left
out it does not, under some schedule: so these tests would see such a fault.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.kv_cache.host_blocks import HostBlocks
from paceline_engine.kv_cache.swap import BlockCopy
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.loading.pinned_copies import PinnedCopies
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.runner.staging import StepStaging
from paceline_engine.runner.token_copies import TokenCopies
from paceline_engine.sampling.sampler import Logprobs, SampledTokens
from paceline_testing.async_device import AT_ONCE, LATE, AsyncDevice, Schedule, any_schedule
from paceline_testing.fake_gpu_model import a_request
from paceline_testing.mutated import mutated

CUDA = torch.device("cuda", 0)
SCHEDULES = [LATE, *(Schedule(eagerness, seed) for seed in range(15) for eagerness in (0.2, 0.6))]
Part = Callable[[Any], list[Any]]
often = settings(max_examples=40, deadline=None)


def results(part: Part, of: Any, schedule: Schedule) -> list[Any]:
    """What a part of the engine gives on a device of its own."""
    with AsyncDevice(schedule).visible() as device:
        given = part(of)
        device.wait_for_all()
        return given


def staged(staging_type: Any, puts: tuple[int, ...] = (3, 1, 4, 4, 2, 5)) -> list[Any]:
    """Numbers that are put one behind the other, and read by work of the same stream."""
    staging = staging_type(8, CUDA)
    read = []
    for turn, count in enumerate(puts):
        arrays = [np.arange(count) + 10 * turn, np.arange(2) - turn]
        read += [each + 1 for each in staging.put(arrays)]
    return [each.tolist() for each in read]


def fetched(copies_type: Any) -> list[Any]:
    """Tokens of steps, of which the second is launched before the first is waited for."""
    copies = copies_type(CUDA, 4)
    given, before = [], None
    for step in range(6):
        ids = torch.arange(3, device=CUDA) * (step + 1)
        numbers = torch.full((1, 4), step, device=CUDA).float()
        asked = Logprobs((0,), (a_request(0, logprobs=1),), numbers) if step % 2 else None
        fetch = copies.start(SampledTokens(ids + 0, asked))
        del ids, numbers, asked
        ahead = torch.full((3,), step, device=CUDA)  # work of the step behind
        if before is not None:
            given.append(before())
        before, _ = fetch, ahead * 2
    assert before is not None
    return [*given, before()]


def loaded(copies_type: Any) -> list[Any]:
    """Weights of several pieces each."""
    copies = copies_type(CUDA, piece_bytes=16)
    tensors = [torch.arange(count) * count for count in (1, 7, 4, 9)]
    return [each.tolist() for each in [copies.put(tensor) for tensor in tensors]]


def swapped(blocks_type: Any) -> list[Any]:
    """Blocks that are written, copied out, overwritten and copied back, while steps write on."""
    kv = _kv()
    blocks = blocks_type(kv, 4)
    for block in range(4):
        for layer in kv.all:
            layer[block] = block + 1.0
    blocks.run([BlockCopy(0, 2, is_out=True), BlockCopy(1, 3, is_out=True)])
    for layer in kv.all:
        layer[:2] = 9.0
    blocks.run(
        [
            BlockCopy(2, 0, is_out=True),
            BlockCopy(3, 2, is_out=False),
            BlockCopy(1, 0, is_out=False),
            BlockCopy(0, 3, is_out=False),
        ]
    )
    for layer in kv.all:
        layer.mul_(2)
    return [[float(layer[block].max()) for block in range(4)] for layer in kv.all]


def _kv() -> KvTensors:
    keys, values = (tuple(torch.zeros(4, 4, 2, 8, device=CUDA) for _ in range(2)) for _ in "kv")
    return KvTensors(keys, values)


def replayed(capture_type: Any) -> list[Any]:
    """A graph of what the steps before it have left, captured amid work."""
    x, out = torch.zeros(4, device=CUDA), torch.zeros(4, device=CUDA)
    x += 1

    def compute() -> None:
        out.copy_(x.square() + out)

    capture = capture_type(CUDA)
    replay = capture.capture(compute)
    x += 1
    given = []
    for _ in range(3):
        replay()
        given.append(out.clone())
        x += 1
    return [each.tolist() for each in given]


PARTS: dict[str, tuple[Part, Any]] = {
    "staging": (staged, StepStaging),
    "tokens": (fetched, TokenCopies),
    "weights": (loaded, PinnedCopies),
    "swapping": (swapped, HostBlocks),
    "capture": (replayed, CudaGraphCapture),
}


@often
@given(st.sampled_from(list(PARTS)), any_schedule())
def test_a_part_gives_what_it_gives_at_once(name: str, schedule: Schedule) -> None:
    part, of = PARTS[name]

    assert results(part, of, schedule) == results(part, of, AT_ONCE)


@often
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), any_schedule())
def test_any_puts_reach_the_device(counts: list[int], schedule: Schedule) -> None:
    """Several in one step too, as of writes that are more than one copy takes."""

    def part(staging_type: Any) -> list[Any]:
        return staged(staging_type, tuple(counts))

    assert results(part, StepStaging, schedule) == results(part, StepStaging, AT_ONCE)


FAULTS: dict[str, tuple[str, str, str]] = {
    "one staging buffer": ("staging", "for _ in range(2)", "for _ in range(1)] * 2 + ["),
    "staging does not wait": ("staging", "copied.synchronize()", "pass"),
    "staging marks nothing": ("staging", "event.record(torch", "(torch"),
    "one buffer for tokens": ("tokens", "self._turn = 1 - self._turn", "pass"),
    "tokens are not waited for": ("tokens", "self._stream.wait_event(is_sampled)", "pass"),
    "the allocator is not told": ("tokens", "tokens.record_stream(self._stream)", "pass"),
    "nobody waits for the copy": ("tokens", "self.done.synchronize()", "pass"),
    "one buffer for weights": ("weights", "for _ in range(2)", "for _ in range(1)) * 2 + tuple("),
    "weights are not waited for": ("weights", "self._sent[turn].synchronize()", "pass"),
    "swapping beside the step": (
        "swapping",
        "self._copy_staged(ordered,",
        "with torch.cuda.stream(torch.cuda.Stream(self._device)): self._copy_staged(ordered,",
    ),
    "a gather beside the copies": (
        "swapping",
        "self._gather(ids)",
        "with torch.cuda.stream(torch.cuda.Stream(self._device)): self._gather(ids)",
    ),
    "a scatter beside the step": (
        "swapping",
        "self._scatter(ids)",
        "with torch.cuda.stream(torch.cuda.Stream(self._device)): self._scatter(ids)",
    ),
    "a capture beside the step": ("capture", "self._stream.wait_stream(serving)", "pass"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str) -> None:
    """Under some schedule of a few, and at once it does not."""
    name, piece, instead = FAULTS[fault]
    part, of = PARTS[name]
    faulty = mutated(of, piece, instead)
    wanted = results(part, of, AT_ONCE)

    assert any(_is_other(part, faulty, schedule, wanted) for schedule in SCHEDULES)


def _is_other(part: Part, faulty: Any, schedule: Schedule, wanted: list[Any]) -> bool:
    try:
        return results(part, faulty, schedule) != wanted
    except (ValueError, IndexError):  # garbage is no number, and no block
        return True
