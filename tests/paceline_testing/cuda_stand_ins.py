"""Stand-ins for what of `torch.cuda` needs a driver: streams, events, graphs, a GPU's properties.

They order nothing: everything happens when it is asked for. Who waits is noted.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from paceline_testing.device_record import DeviceRecord, Launch


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """What torch tells of a GPU."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    total_memory: int = 141 << 30
    weight_bytes: int = 0
    """What is gone, whatever the engine does."""
    step_bytes: int = 0
    """What torch's allocator has taken once a kernel was launched."""
    library_bytes: int = 0
    """What is gone once a kernel was launched."""
    graph_bytes: int = 0
    """What the driver keeps for each graph."""


class _Event:
    """A point in a stream's work."""

    of: ClassVar[DeviceRecord]

    def __init__(self, **_: object) -> None:
        self.is_recorded = False

    def record(self, _stream: object = None) -> None:
        self.is_recorded = True

    def synchronize(self) -> None:
        if self.is_recorded:  # else it is complete
            self.of.waited("Event.synchronize")

    def elapsed_time(self, _other: "_Event") -> float:
        return 1.0


class _Stream:
    """An order of work."""

    of: ClassVar[DeviceRecord]

    def __init__(self, _device: object = None) -> None: ...

    def wait_event(self, event: _Event) -> None:
        if not event.is_recorded:
            raise AssertionError("a stream waits for an event that nobody has recorded")

    def wait_stream(self, other: "_Stream") -> None: ...

    def synchronize(self) -> None:
        self.of.waited("Stream.synchronize")


class _Graph:
    """Launches that are replayed by one call."""

    of: ClassVar[DeviceRecord]
    alive: ClassVar["weakref.WeakSet[_Graph]"]
    launches: tuple[Launch, ...] = ()

    def capture_begin(self, **_: object) -> None:
        self.of.begin_capture()

    def capture_end(self) -> None:
        self.launches = self.of.end_capture()
        self.alive.add(self)

    def replay(self) -> None:
        for launch in self.launches:
            self.of.add(replace(launch, in_graph=True))


class _Current:
    """The stream that is worked on."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def get(self, _device: object = None) -> _Stream:
        return self._stream

    @contextmanager
    def changed(self, stream: _Stream) -> Iterator[None]:
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before


def _record_stream(tensor: Tensor, _stream: _Stream) -> None:
    if not tensor.is_cuda:
        raise AssertionError(f"record_stream is for tensors of the device, got {tensor.device}")


@contextmanager
def cuda_stand_ins(record: DeviceRecord, gpu: FakeGpu, num_gpus: int) -> Iterator[None]:
    """Let torch find GPUs; nothing of a driver is called."""

    class Event(_Event):
        of = record

    class Stream(_Stream):
        of = record

    class CUDAGraph(_Graph):
        of = record
        alive: ClassVar["weakref.WeakSet[_Graph]"] = weakref.WeakSet()

    def has_run() -> bool:
        return any(launch.kind == "kernel" for launch in record.launches)

    def most_reserved(_device: object = None) -> int:
        return gpu.step_bytes if has_run() else 0

    def mem_get_info(_device: object = None) -> tuple[int, int]:
        libraries = gpu.library_bytes if has_run() else 0
        taken = gpu.weight_bytes + libraries + gpu.graph_bytes * len(CUDAGraph.alive)
        return gpu.total_memory * 9 // 10 - taken - most_reserved(), gpu.total_memory

    current = _Current(Stream())
    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": CUDAGraph,
        "stream": current.changed,
        "current_stream": current.get,
        "graph_pool_handle": lambda: (0, 0),
        "synchronize": lambda _device=None: record.waited("torch.cuda.synchronize"),
        "is_available": lambda: True,
        "device_count": lambda: num_gpus,
        "set_device": lambda _device: None,
        "empty_cache": lambda: None,
        "mem_get_info": mem_get_info,
        "memory_reserved": most_reserved,
        "max_memory_reserved": most_reserved,
        "reset_peak_memory_stats": lambda _device=None: None,
        "get_device_name": lambda _device=None: gpu.name,
        "get_device_properties": lambda _device=None: gpu,
    }
    with ExitStack() as patches:
        for name, stand_in in stand_ins.items():
            patches.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        patches.enter_context(mock.patch.object(Tensor, "record_stream", _record_stream))
        yield
