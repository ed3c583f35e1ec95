"""Stand-ins for `torch.cuda`'s streams, events and graphs, on an asynchronous device."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from paceline_testing.async_device.tensors import DeviceTensor
from paceline_testing.async_device.work import Run, Work
from paceline_testing.cuda_stand_ins import FakeGpu

if TYPE_CHECKING:
    from paceline_testing.async_device.device import AsyncDevice


@dataclass(frozen=True, slots=True)
class Meet:
    """In a graph: queues what a rank does where it meets the others."""

    queue: Run

    def __call__(self) -> None:
        """Queue it."""
        self.queue()


class Event:
    """A point in a stream's work."""

    of: ClassVar["AsyncDevice"]

    def __init__(self, **_: object) -> None:
        self.work: Work | None = None

    def record(self, stream: "Stream | None" = None) -> None:
        """Mark what the stream has got so far."""
        self.work = (stream or self.of.stream).queue.last

    def synchronize(self) -> None:
        """Wait for what was marked last; for nothing where nothing was."""
        self.of.wait(self.work)

    def query(self) -> bool:
        """Tell whether it is done."""
        return self.work is None or self.work.is_done

    def elapsed_time(self, _other: "Event") -> float:
        """Return some time."""
        return 1.0


class Stream:
    """An order of work."""

    of: ClassVar["AsyncDevice"]

    def __init__(self, _device: object = None) -> None:
        self.queue = self.of.worker.queue()

    def wait_event(self, event: Event) -> None:
        """Run nothing more before what the event marks."""
        self.of.add(_nothing, event.work, stream=self)

    def wait_stream(self, other: "Stream") -> None:
        """Run nothing more before what the other has got so far."""
        self.of.add(_nothing, other.queue.last, stream=self)

    def synchronize(self) -> None:
        """Let the host wait for all it has got."""
        self.of.wait(self.queue.last)


class CUDAGraph:
    """Work that is queued by one call."""

    of: ClassVar["AsyncDevice"]

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def capture_begin(self, **_: object) -> None:
        """Keep what follows instead of queueing it."""
        if self.of.captured is not None:
            raise RuntimeError("a stream is captured already")
        self.of.captured = self._runs

    def capture_end(self) -> None:
        """Queue what follows again."""
        self.of.captured = None

    def replay(self) -> None:
        """Queue it all; where ranks meet, what follows waits for the others."""
        for is_meeting, runs in groupby(self._runs, lambda run: isinstance(run, Meet)):
            if is_meeting:
                for run in runs:
                    run()
            else:
                self.of.add(partial(_run_all, tuple(runs)))


def _run_all(runs: tuple[Run, ...]) -> None:
    for run in runs:
        run()


def _nothing() -> None:
    return None


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    if not isinstance(tensor, DeviceTensor):
        raise TypeError(f"record_stream is for tensors of the device, got {tensor.device}")
    tensor.memory.used_on.append(stream.queue)


@contextmanager
def stand_ins(device: "AsyncDevice", gpu: FakeGpu) -> Iterator[None]:
    """Let torch find this GPU; nothing of a driver is called."""

    @contextmanager
    def working_on(stream: Stream) -> Iterator[None]:
        before, device.stream = device.stream, stream
        try:
            yield
        finally:
            device.stream = before

    found: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "Event": type("Event", (Event,), {"of": device}),
        "Stream": device.stream_type,
        "CUDAGraph": type("CUDAGraph", (CUDAGraph,), {"of": device}),
        "stream": working_on,
        "current_stream": lambda _device=None: device.stream,
        "graph_pool_handle": lambda: (0, 0),
        "synchronize": lambda _device=None: device.wait_for_all(),
        "is_available": lambda: True,
        "device_count": lambda: device.num_gpus,
        "set_device": lambda _device: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda _device=None: (gpu.total_memory * 9 // 10, gpu.total_memory),
        "memory_reserved": lambda _device=None: 0,
        "max_memory_reserved": lambda _device=None: 0,
        "reset_peak_memory_stats": lambda _device=None: None,
        "get_device_name": lambda _device=None: gpu.name,
        "get_device_properties": lambda _device=None: gpu,
    }
    with ExitStack() as patches:
        for name, stand_in in found.items():
            patches.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        patches.enter_context(mock.patch.object(Tensor, "record_stream", _record_stream))
        yield
