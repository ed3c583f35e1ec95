"""KV blocks in host memory, copied to and from the device; the cost of a copy is measured.

On a GPU the memory is pinned, and copies run on the step's own stream: what the step computes next
sees them, and nothing waits on the host but the clock that measures them.
"""

import time
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from paceline_engine.kv_cache.swap import BlockCopy
from paceline_engine.kv_cache.tensors import KvTensors

_NEWEST_WEIGHT = 0.2
_TRIAL_BLOCKS = 8
_TRIALS = 3


class HostBlocks:
    """Implements the `Swapper` port for the KV tensors of one model."""

    def __init__(
        self, kv: KvTensors, num_slots: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.num_slots = num_slots
        self._device = kv.keys[0].device
        # Each [num_blocks, block_size, heads, ...]; what is stored is copied, whatever it means.
        self._layers = tuple(
            layer.view(torch.uint8) if layer.itemsize == 1 else layer for layer in kv.all
        )
        self._clock = clock
        is_gpu = self._device.type == "cuda"
        self._host = tuple(
            torch.zeros((num_slots, *layer.shape[1:]), dtype=layer.dtype, pin_memory=is_gpu)
            for layer in self._layers
        )
        self._block_ms = 0.0
        self._block_ms = self._measure()

    def ms(self, num_blocks: int) -> float:
        """Time that copying so many blocks one way takes, as measured so far."""
        return num_blocks * self._block_ms

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy runs of one direction together, in the order that was asked for."""
        started = self._clock()
        for is_out, run in groupby(copies, key=lambda copy: copy.is_out):
            self._copy(list(run), is_out=is_out)
        self._wait()
        took_ms = (self._clock() - started) * 1e3 / max(1, len(copies))
        self._block_ms += _NEWEST_WEIGHT * (took_ms - self._block_ms)

    @torch.inference_mode()
    def _copy(self, copies: Sequence[BlockCopy], *, is_out: bool) -> None:
        if self._device.type == "cuda":
            self._copy_each(copies)
            return
        slots = torch.tensor([copy.slot for copy in copies])
        blocks = torch.tensor([copy.block_id for copy in copies])
        for layer, host in zip(self._layers, self._host, strict=True):
            if is_out:
                host[slots] = layer[blocks]
            else:
                layer[blocks] = host[slots]

    def _copy_each(self, copies: Sequence[BlockCopy]) -> None:
        """Straight between a block and its pinned slot: both are one piece of memory."""
        for layer, host in zip(self._layers, self._host, strict=True):
            for copy in copies:
                block, slot = layer[copy.block_id], host[copy.slot]
                if copy.is_out:
                    slot.copy_(block, non_blocking=True)
                else:
                    block.copy_(slot, non_blocking=True)

    def _measure(self) -> float:
        """The fastest of a few trials each way; slots and blocks hold nothing yet."""
        count = min(_TRIAL_BLOCKS, self.num_slots, self._layers[0].shape[0])
        if count == 0:
            return 0.0
        took = []
        for trial in range(2 * _TRIALS):
            copies = [BlockCopy(n, n, is_out=trial % 2 == 0) for n in range(count)]
            started = self._clock()
            self._copy(copies, is_out=trial % 2 == 0)
            self._wait()
            took.append((self._clock() - started) * 1e3 / count)
        return sum(sorted(took)[:_TRIALS]) / _TRIALS

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
