"""CUDA graphs. Implements the `GraphCapture` port; never yet run: no GPU was at hand."""

from collections.abc import Callable

import torch

from paceline_engine.runner.cuda_graphs import Replay


class CudaGraphCapture:
    """Captures into one pool of memory: no two graphs run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._device = device

    def record(self, compute: Callable[[], None]) -> Replay:
        """See `GraphCapture`."""
        serving = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(serving)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            compute()  # kernels are compiled, libraries choose: neither can be while capturing
            self._stream.synchronize()
            # Other threads must not be held up by what a capture forbids; they use no GPU.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                compute()
            finally:
                graph.capture_end()
        serving.wait_stream(self._stream)
        return graph.replay
