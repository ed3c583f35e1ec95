"""Blocks that are copied to host memory and back hold what they held, in few launches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.kv_cache.copy_price import CopyPrice, fitted
from paceline_engine.kv_cache.host_blocks import HostBlocks
from paceline_engine.kv_cache.swap import BlockCopy
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_kernels.fp8 import CODES, EXPONENTS
from paceline_testing.async_device import AsyncDevice, Schedule, any_schedule
from paceline_testing.device_record import DeviceRecord
from paceline_testing.fake_cuda import FakeCuda

BLOCKS, SLOTS = 6, 5
copies_of_a_step = st.lists(
    st.builds(
        BlockCopy, st.integers(0, BLOCKS - 1), st.integers(0, SLOTS - 1), is_out=st.booleans()
    ),
    max_size=12,
)
stored = st.sampled_from([torch.float32, torch.bfloat16, CODES])


def a_kv(dtype: torch.dtype, device: str, num_heads: int = 1) -> KvTensors:
    """Two layers, whose blocks hold the number of their block; FP8 has exponents of three bytes."""
    numbers = (torch.arange(BLOCKS) + 1.0).view(-1, 1, 1, 1)

    def layer(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        wide = numbers.view(-1, *[1] * len(shape)).expand(BLOCKS, *shape)
        return wide.contiguous().to(dtype).to(device)

    keys, values = (tuple(layer(3, num_heads, 4, dtype=dtype) for _ in range(2)) for _ in "kv")
    if dtype != CODES:
        return KvTensors(keys, values)
    of_keys, of_values = (
        tuple(layer(3, num_heads, dtype=EXPONENTS) for _ in range(2)) for _ in "kv"
    )
    return KvTensors(keys, values, of_keys, of_values)


def one_by_one(steps: Sequence[Sequence[BlockCopy]]) -> list[int]:
    """Return whose numbers each block holds if the copies follow one another."""
    # What was copied to measure has left the first blocks in the slots.
    blocks, slots = list(range(1, BLOCKS + 1)), list(range(1, SLOTS + 1))
    for copy in (copy for copies in steps for copy in copies):
        if copy.is_out:
            slots[copy.slot] = blocks[copy.block_id]
        else:
            blocks[copy.block_id] = slots[copy.slot]
    return blocks


def out_then_in(copies: Sequence[BlockCopy]) -> list[list[BlockCopy]]:
    """Cut where a copy out follows one in.

    The device of these tests spoils a slot as soon as a copy to it is asked for, also where an
    earlier copy of the same stream has yet to read it.
    """
    parts: list[list[BlockCopy]] = [[]]
    for copy in copies:
        if copy.is_out and parts[-1] and not parts[-1][-1].is_out:
            parts.append([])
        parts[-1].append(copy)
    return parts


def held(kv: KvTensors) -> list[list[int]]:
    """Return the number that all of a block consists of, in each layer."""
    found = []
    for layer in kv.all:
        flat = layer.to(torch.float32).cpu().view(BLOCKS, -1)
        assert (flat == flat[:, :1]).all()
        found.append([int(each) for each in flat[:, 0].tolist()])
    return found


@settings(deadline=None, max_examples=25)
@given(st.lists(copies_of_a_step, max_size=3), stored)
def test_a_cpu_copies_as_if_one_by_one(steps: list[list[BlockCopy]], dtype: torch.dtype) -> None:
    """Two copies to one slot, or to one block, of one step too."""
    kv = a_kv(dtype, "cpu")
    blocks = HostBlocks(kv, SLOTS)
    for copies in steps:
        blocks.run(copies)

    assert held(kv) == [one_by_one(steps)] * len(kv.all)


@settings(deadline=None, max_examples=25)
@given(st.lists(copies_of_a_step, max_size=3), stored, st.integers(0, 4), any_schedule())
def test_a_gpu_copies_as_if_one_by_one(
    steps: list[list[BlockCopy]], dtype: torch.dtype, room: int, schedule: Schedule
) -> None:
    """However few blocks its buffer has room for, and however late it runs what it is given."""
    with AsyncDevice(schedule).visible() as device:
        kv = a_kv(dtype, "cuda")
        block_bytes = sum(layer[0].nbytes for layer in kv.all)
        blocks = HostBlocks(kv, SLOTS, staging_bytes=room * block_bytes)
        for copies in steps:
            for part in out_then_in(copies):
                blocks.run(part)
        device.wait_for_all()

        assert held(kv) == [one_by_one(steps)] * len(kv.all)


LAYERS, MANY = 32, 64
SLOT_LISTS = {
    "consecutive": (list(range(MANY)), 1),
    "given in reverse": (list(range(MANY))[::-1], 1),
    "in two places": ([*range(40), *range(100, 124)], 2),
    "every other": (list(range(0, 2 * MANY, 2)), MANY),
}


@pytest.mark.parametrize("case", SLOT_LISTS)
@pytest.mark.parametrize("is_out", [True, False], ids=["out", "in"])
def test_many_blocks_of_many_layers_take_few_launches(case: str, *, is_out: bool) -> None:
    """A gather of each layer's keys and values, and a copy of each run of slots."""
    slots, num_runs = SLOT_LISTS[case]
    fake = FakeCuda()
    with fake.visible():
        shape = (2 * MANY, 16, 2, 16)
        keys, values = (
            tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS))
            for _ in "kv"
        )
        blocks = HostBlocks(KvTensors(keys, values), 2 * MANY)
        fake.record.clear()
        blocks.run([BlockCopy(n * 7 % 128, slot, is_out=is_out) for n, slot in enumerate(slots)])

    launches = fake.record.launches
    bytes_of_all = 2 * LAYERS * MANY * 16 * 2 * 16 * 2
    names = Counter(launch.name for launch in launches)
    if is_out:
        wanted = {"cpu to cuda": 1, "aten.index_select.out": 2 * LAYERS, "cuda to cpu": num_runs}
    else:
        wanted = {"cpu to cuda": 1 + num_runs, "aten.index_copy_.default": 2 * LAYERS}
    assert names == wanted
    assert len(launches) == 2 * LAYERS + 1 + num_runs < 2 * LAYERS * MANY
    on_device = [launch for launch in launches if launch.kind != "copy"]
    assert sum(launch.written for launch in on_device) == bytes_of_all
    assert fake.record.waits == ["Stream.synchronize"]


def test_the_buffer_bounds_what_is_on_its_way() -> None:
    """More blocks than it has room for take more gathers, not more memory."""
    fake = FakeCuda()
    with fake.visible():
        layers = tuple(torch.zeros((8, 16, 2, 16), device="cuda") for _ in range(2))
        block_bytes = 2 * layers[0][0].nbytes
        blocks = HostBlocks(KvTensors(layers[:1], layers[1:]), 8, staging_bytes=3 * block_bytes)
        fake.record.clear()
        blocks.run([BlockCopy(n, n, is_out=True) for n in range(8)])

    gathered = [each for each in fake.record.launches if each.name == "aten.index_select.out"]
    assert [each.written for each in gathered] == [
        count * block_bytes // 2 for count in (3, 3, 2) for _ in range(2)
    ]


@dataclass
class LaunchClock:
    """Time passes as launches and bytes are handed to a fake GPU: 5 µs each, and 50 GB/s."""

    record: DeviceRecord
    slowness: float = 1.0

    def __call__(self) -> float:
        launches = self.record.launches
        num_bytes = sum(each.read for each in launches if each.kind == "copy")
        return self.slowness * (5e-6 * len(launches) + num_bytes / 50e9)


def priced_on(fake: FakeCuda) -> tuple[HostBlocks, LaunchClock]:
    """Return host memory for blocks of 32 layers, and the clock that its price is measured by."""
    shape = (2 * MANY, 16, 2, 16)
    keys, values = (
        tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS))
        for _ in "kv"
    )
    clock = LaunchClock(fake.record)
    return HostBlocks(KvTensors(keys, values), 2 * MANY, clock), clock


@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_price_has_a_fixed_part_and_one_for_each_block(count: int) -> None:
    """Most of what few blocks take are launches, which many blocks take no more of."""
    fake = FakeCuda()
    with fake.visible():
        blocks, clock = priced_on(fake)
        expected_ms = blocks.ms(count)
        started = clock()
        blocks.run([BlockCopy(n, n, is_out=True) for n in range(count)])
        took_ms = (clock() - started) * 1e3

    assert expected_ms == pytest.approx(took_ms, rel=1e-3)
    assert blocks.ms(count) == pytest.approx(took_ms, rel=1e-3)


def test_copies_of_both_ways_pay_the_fixed_part_each() -> None:
    """What they took together says nothing against the price of either."""
    fake = FakeCuda()
    with fake.visible():
        blocks, _ = priced_on(fake)
        before = blocks.ms(1), blocks.ms(50)
        out = [BlockCopy(n, n, is_out=True) for n in range(9)]
        blocks.run([*out, *(BlockCopy(n, 20 + n, is_out=False) for n in range(3))])

    assert (blocks.ms(1), blocks.ms(50)) == pytest.approx(before, rel=1e-3)


def test_a_slower_bus_raises_the_price() -> None:
    """Step by step: a moment on a shared machine is not the rule."""
    fake = FakeCuda()
    with fake.visible():
        blocks, clock = priced_on(fake)
        before = blocks.ms(64)
        clock.slowness = 2.0
        prices = []
        for _ in range(30):
            blocks.run([BlockCopy(n, n, is_out=True) for n in range(64)])
            prices.append(blocks.ms(64))

    assert before < prices[0] < 1.5 * before
    assert prices == sorted(prices)
    assert prices[-1] == pytest.approx(2 * before, rel=0.01)


@pytest.mark.parametrize(
    ("one_ms", "many_ms", "price"),
    [
        (1.0, 4.1, CopyPrice(0.9, 0.1)),
        (0.5, 64.0, CopyPrice(0.0, 2.0)),
        (1.0, 0.8, CopyPrice(0.0, 0.025)),
    ],
    ids=["a fixed part", "none", "noise"],
)
def test_two_times_give_both_parts(one_ms: float, many_ms: float, price: CopyPrice) -> None:
    """Neither part is ever negative."""
    found = fitted(one_ms, many_ms, 32)

    assert found.fixed_ms == pytest.approx(price.fixed_ms)
    assert found.block_ms == pytest.approx(price.block_ms)
