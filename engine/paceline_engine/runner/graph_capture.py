"""CUDA graph capture: what a function does on the device, captured once and replayed at will."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch

Replay: TypeAlias = Callable[[], None]


class GraphCapture(Protocol):
    """Captures what a function does on the device."""

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Run the function and capture it; the result replays it on the tensors as they are then.

        Graphs may share memory: what one leaves outside of tensors that were there before the
        capture is gone with the next replay of another.
        """
        ...


class CudaGraphCapture:
    """Captures into one pool of memory: no two graphs run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._device = device

    def capture(self, compute: Callable[[], None]) -> Replay:
        """See `GraphCapture`."""
        serving = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(serving)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Compiling kernels and choosing algorithms cannot happen during a capture.
            compute()
            self._stream.synchronize()
            with _no_collection():
                # Other threads must not be held up by what a capture forbids; they use no GPU.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    compute()
                finally:
                    graph.capture_end()
        serving.wait_stream(self._stream)
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: what it frees may ask the driver for what a capture forbids.

    Old graphs, events and tensors of another stream are such.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
