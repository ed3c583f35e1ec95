"""Sampled tokens, and what is told of them, on their way from the device to the host.

On a GPU they are copied on a stream of their own into pinned memory that is taken once: the step
behind runs on meanwhile, and the host waits for an event, not for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.sampling.chosen import Chosen, Told


class HostTokens:
    """Takes over the tokens of one step after the other."""

    def __init__(self, device: torch.device, num_rows: int) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        if self._is_gpu:
            # One is read by the host while the other is written: no third step is in flight.
            self._pinned = [
                torch.empty(num_rows, dtype=torch.int64, pin_memory=True) for _ in range(2)
            ]
            self._stream = torch.cuda.Stream(device)
            self._turn = 0

    def fetch(self, chosen: Chosen) -> Callable[[], list[int]]:
        """Begin to copy; the function waits for it, and tells what is to be told."""
        if not self._is_gpu:
            return chosen.on_host
        tokens, told = chosen.tokens, chosen.told
        self._turn = 1 - self._turn
        pinned = self._pinned[self._turn][: len(tokens)]
        sampled = torch.cuda.Event()
        sampled.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(sampled)
            pinned.copy_(tokens, non_blocking=True)
            # The allocator must not give the memory to a later step before it was copied.
            tokens.record_stream(self._stream)
            numbers = None
            if told is not None:  # as few as ask: from torch's cache of pinned memory
                numbers = torch.empty_like(told.numbers, device="cpu", pin_memory=True)
                numbers.copy_(told.numbers, non_blocking=True)
                told.numbers.record_stream(self._stream)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return _Copy(pinned, copied, told, numbers).wait


@dataclass(frozen=True, slots=True)
class _Copy:
    pinned: Tensor  # [R]
    done: torch.cuda.Event
    told: Told | None
    numbers: Tensor | None

    def wait(self) -> list[int]:
        self.done.synchronize()
        tokens: list[int] = self.pinned.tolist()
        if self.told is not None and self.numbers is not None:
            self.told.tell(tokens, self.numbers.tolist())
        return tokens
