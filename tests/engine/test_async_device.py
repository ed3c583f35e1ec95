"""The asynchronous device does what a GPU does with code that does not wait for it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from paceline_testing.async_device import AT_ONCE, LATE, AsyncDevice, Schedule

CUDA = torch.device("cuda")
RANDOM = [Schedule(0.3, seed) for seed in range(20)]


@pytest.fixture
def device() -> Iterator[AsyncDevice]:
    """Runs nothing before somebody waits."""
    with AsyncDevice(LATE).visible() as device:
        yield device


def pinned(*numbers: int) -> Tensor:
    return torch.tensor(numbers).pin_memory()


def test_ops_give_what_the_host_gives(device: AsyncDevice) -> None:
    """Views share memory, numbers of the host take part, and shapes may depend on values."""
    x = torch.arange(6, device=CUDA).view(2, 3)
    x[1] += 10
    x[:, 0].zero_()
    y = torch.cat([x.t() * 2, torch.ones(3, 1, dtype=torch.int64, device=CUDA)], dim=1)

    assert (x.device.type, x.is_cuda, y.shape) == ("cuda", True, (3, 3))
    assert y.tolist() == [[0, 0, 1], [2, 28, 1], [4, 30, 1]]
    assert x.nonzero().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert y[x.sum(0) > 12].tolist() == [[2, 28, 1], [4, 30, 1]]
    device.wait_for_all()


def test_a_copy_reads_pinned_memory_when_it_runs(device: AsyncDevice) -> None:
    """What the host writes meanwhile is copied; without pinned memory the host waits."""
    host, unpinned = pinned(1, 2), torch.tensor([5, 6])
    copied = host.to(CUDA, non_blocking=True)
    of_unpinned = unpinned.to(CUDA, non_blocking=True)
    host[0], unpinned[0] = 9, 9

    assert copied.tolist() == [9, 2]
    assert of_unpinned.tolist() == [5, 6]
    host[1] = 8
    assert copied.tolist() == [9, 2]
    device.wait_for_all()


def test_what_is_on_its_way_to_the_host_is_garbage_there(device: AsyncDevice) -> None:
    """Until somebody waits for the copy."""
    host, numbers = pinned(1, 2), torch.tensor([3, 4], device=CUDA)
    host.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    assert not copied.query()
    assert host.tolist() != [3, 4]
    copied.synchronize()
    assert host.tolist() == [3, 4]
    device.wait_for_all()


@pytest.mark.parametrize("waits", [False, True], ids=["unordered", "ordered"])
def test_streams_run_in_any_order_but_for_events(waits: bool) -> None:
    """With an event they give one result, without one several."""
    results = set()
    for schedule in (AT_ONCE, LATE, *RANDOM):
        with AsyncDevice(schedule).visible() as device:
            x = torch.zeros(1, device=CUDA)
            side = torch.cuda.Stream(CUDA)
            side.wait_stream(torch.cuda.current_stream())
            x += 1
            added = torch.cuda.Event()
            added.record()
            with torch.cuda.stream(side):
                if waits:
                    side.wait_event(added)
                y = x * 10
            side.synchronize()
            with torch.cuda.stream(side):
                results.add(y.item())
            device.wait_for_all()

    assert results == ({10} if waits else {0, 10})


@pytest.mark.parametrize("tells", [False, True], ids=["not told", "told"])
def test_memory_that_is_freed_is_given_to_others(tells: bool) -> None:
    """Whatever another stream still has to do with it, unless the allocator was told."""
    results = set()
    for schedule in (AT_ONCE, LATE, *RANDOM):
        with AsyncDevice(schedule).visible() as device:
            x = torch.full((2,), 5, device=CUDA)
            side = torch.cuda.Stream(CUDA)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x + 1
                if tells:
                    x.record_stream(side)
                del x
                results.add(tuple(y.tolist()))
            device.wait_for_all()

    assert results == ({(6, 6)} if tells else {(6, 6), (78, 78)})


def test_memory_that_nothing_wrote_is_garbage(device: AsyncDevice) -> None:
    """As are results before they are computed, to who reads them beside the stream."""
    assert torch.empty(2, device=CUDA).isnan().all()
    assert torch.empty_like(torch.ones(2, device=CUDA)).isnan().all()
    device.wait_for_all()


def test_a_graph_replays_on_the_tensors_as_they_are(device: AsyncDevice) -> None:
    """What it leaves in memory of its own is gone, and it cannot hold a wait."""
    x, out = torch.tensor([1, 2], device=CUDA), torch.zeros(2, dtype=torch.int64, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=torch.cuda.graph_pool_handle())
    out.copy_(x * 3)
    with pytest.raises(RuntimeError, match="capturing"):
        out.tolist()
    graph.capture_end()
    assert out.tolist() == [0, 0]

    graph.replay()
    x += 1
    first = out.clone()
    graph.replay()

    assert first.tolist() == [3, 6]
    assert out.tolist() == [6, 9]
    device.wait_for_all()


def test_tensors_need_their_device() -> None:
    """Outside of it nothing is computed."""
    with AsyncDevice().visible():
        x = torch.zeros(2, device=CUDA)

    with pytest.raises(AssertionError, match="outside"):
        _ = x + 1
