"""KV blocks in host memory, copied to and from the device; the price of copies is measured.

On a GPU the memory is pinned. To swap out, each layer's blocks are gathered into one device buffer,
whose rows have the layout of slots, and each run of consecutive slots is copied at once; swapping
in is the reverse. All of it runs on the step's own stream, so the next step sees the copies, and
the buffer is free before the next gather. The host waits only to time the copies.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from paceline_engine.kv_cache.copy_price import CopyPrice, fitted
from paceline_engine.kv_cache.swap import STAGING_BYTES, BlockCopy, num_staged
from paceline_engine.kv_cache.tensors import KvTensors

# The larger of the two trial sizes: copying must dominate launching. At 128 KiB a token it takes
# some 1.3 ms on PCIe at 50 GB/s, while 66 launches of 5 µs take 0.33 ms.
_TRIAL_BLOCKS = 32
_TRIALS = 3
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class HostBlocks:
    """Implements the `Swapper` port for the KV tensors of one model."""

    def __init__(
        self,
        kv: KvTensors,
        num_slots: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self.num_slots = num_slots
        self._device = kv.keys[0].device
        # Each [num_blocks, words of a block]; what is stored is copied, whatever it means.
        self._layers = _in_words(kv.all)
        self._clock = clock
        is_gpu = self._device.type == "cuda"
        dtype = self._layers[0].dtype
        self._widths = [layer.shape[1] for layer in self._layers]
        slot_words = sum(self._widths)
        # A slot holds its block's words of all layers in one piece. On a CPU, which copies layer by
        # layer, each layer's slots are the piece.
        self._host = torch.zeros((num_slots, slot_words), dtype=dtype, pin_memory=is_gpu)
        slot_bytes = slot_words * dtype.itemsize
        num_rows = num_staged(num_slots, slot_bytes, staging_bytes) if is_gpu else 0
        self._staging = torch.empty((num_rows, slot_words), dtype=dtype, device=self._device)
        self._price = self._measure()

    def ms(self, num_blocks: int) -> float:
        """Time that copying so many blocks one way takes, as measured so far."""
        return self._price.ms(num_blocks)

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy runs of one direction together, in the order that was asked for."""
        predicted_ms = 0.0
        started = self._clock()
        for is_out, run in groupby(copies, key=lambda copy: copy.is_out):
            together = list(run)
            self._copy(together, is_out=is_out)
            predicted_ms += self.ms(len(together))
        self._wait()
        took_ms = (self._clock() - started) * 1e3
        self._price = self._price.corrected(predicted_ms, took_ms)

    @torch.inference_mode()
    def _copy(self, copies: Sequence[BlockCopy], *, is_out: bool) -> None:
        # Of two copies to one place the later counts, as if they followed one another.
        last = {copy.slot if is_out else copy.block_id: copy for copy in copies}
        # Their order is free otherwise: that of slots makes long pieces.
        ordered = sorted(last.values(), key=lambda copy: copy.slot)
        blocks = torch.tensor([copy.block_id for copy in ordered])
        if self._device.type == "cuda":
            self._copy_staged(ordered, blocks.pin_memory(), is_out=is_out)
            return
        slots = torch.tensor([copy.slot for copy in ordered])
        hosts = self._host.view(-1).split([self.num_slots * width for width in self._widths])
        for layer, of_layer in zip(self._layers, hosts, strict=True):
            host = of_layer.view(self.num_slots, -1)
            if is_out:
                host[slots] = layer[blocks]
            else:
                layer[blocks] = host[slots]

    def _copy_staged(self, copies: Sequence[BlockCopy], blocks: Tensor, *, is_out: bool) -> None:
        """Several blocks at a time; `blocks`, their ids in pinned memory, go ahead of them."""
        blocks = blocks.to(self._device, non_blocking=True)
        room = len(self._staging)
        for first in range(0, len(copies), room):
            together, ids = copies[first : first + room], blocks[first : first + room]
            if is_out:
                self._gather(ids)
            for row, slot, count in _pieces(together):
                staged, host = self._staging[row : row + count], self._host[slot : slot + count]
                if is_out:
                    host.copy_(staged, non_blocking=True)
                else:
                    staged.copy_(host, non_blocking=True)
            if not is_out:
                self._scatter(ids)

    def _gather(self, ids: Tensor) -> None:
        staged = self._staging[: len(ids)].split(self._widths, dim=1)
        for layer, of_layer in zip(self._layers, staged, strict=True):
            torch.index_select(layer, 0, ids, out=of_layer)

    def _scatter(self, ids: Tensor) -> None:
        staged = self._staging[: len(ids)].split(self._widths, dim=1)
        for layer, of_layer in zip(self._layers, staged, strict=True):
            layer.index_copy_(0, ids, of_layer)

    def _measure(self) -> CopyPrice:
        """Time copies of one block and of many, while slots and blocks are still unused."""
        many = min(_TRIAL_BLOCKS, self.num_slots, self._layers[0].shape[0])
        if many == 0:
            return CopyPrice()
        return fitted(one_ms=self._trial_ms(1), many_ms=self._trial_ms(many), many=many)

    def _trial_ms(self, count: int) -> float:
        """The mean of the fastest of a few trials each way."""
        took = []
        for trial in range(2 * _TRIALS):
            copies = [BlockCopy(n, n, is_out=trial % 2 == 0) for n in range(count)]
            started = self._clock()
            self._copy(copies, is_out=trial % 2 == 0)
            self._wait()
            took.append((self._clock() - started) * 1e3)
        return sum(sorted(took)[:_TRIALS]) / _TRIALS

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _in_words(layers: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return each layer's memory as [num_blocks, words], in the widest that all consist of."""
    num_bytes = [layer.shape[1:].numel() * layer.itemsize for layer in layers]
    word = next(word for word in _WORDS if not any(each % word.itemsize for each in num_bytes))
    return tuple(layer.view(layer.shape[0], -1).view(word) for layer in layers)


def _pieces(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """Yield row of the buffer, slot and length of each run of consecutive slots."""
    first = 0
    for row in range(1, len(copies) + 1):
        if row == len(copies) or copies[row].slot != copies[row - 1].slot + 1:
            yield first, copies[first].slot, row - first
            first = row
