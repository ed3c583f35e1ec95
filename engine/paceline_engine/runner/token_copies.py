"""Sampled tokens and logprobs on their way from a GPU to the host.

They are copied on a stream of their own into pinned memory that is taken once: the step behind runs
on meanwhile, and the host waits for an event, not for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.sampling.sampler import HostTokens, Logprobs, SampledTokens


class TokenCopies:
    """Copies the tokens of one step after the other."""

    def __init__(self, device: torch.device, num_rows: int) -> None:
        self._device = device
        # The host reads one while the other is written: no third step is in flight.
        self._pinned = [torch.empty(num_rows, dtype=torch.int64, pin_memory=True) for _ in range(2)]
        self._stream = torch.cuda.Stream(device)
        self._turn = 0

    def start(self, sampled: SampledTokens) -> Callable[[], HostTokens]:
        """Begin to copy; the function that is returned waits for the copy."""
        tokens, logprobs = sampled.token_ids, sampled.logprobs
        self._turn = 1 - self._turn
        pinned = self._pinned[self._turn]
        if len(tokens) > len(pinned):  # drafts are verified: from torch's cache of pinned memory
            pinned = torch.empty_like(tokens, device="cpu", pin_memory=True)
        pinned = pinned[: len(tokens)]
        is_sampled = torch.cuda.Event()
        is_sampled.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(is_sampled)
            pinned.copy_(tokens, non_blocking=True)
            # The allocator must not give the memory to a later step before it was copied.
            tokens.record_stream(self._stream)
            numbers = None
            if logprobs is not None:  # as few as ask: from torch's cache of pinned memory
                numbers = torch.empty_like(logprobs.numbers, device="cpu", pin_memory=True)
                numbers.copy_(logprobs.numbers, non_blocking=True)
                logprobs.numbers.record_stream(self._stream)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return _Copy(pinned, copied, logprobs, numbers).wait


@dataclass(frozen=True, slots=True)
class _Copy:
    pinned: Tensor  # [R]
    done: torch.cuda.Event
    logprobs: Logprobs | None
    numbers: Tensor | None

    def wait(self) -> HostTokens:
        self.done.synchronize()
        token_ids: list[int] = self.pinned.tolist()
        if self.logprobs is None or self.numbers is None:
            return HostTokens(token_ids, {})
        return HostTokens(token_ids, self.logprobs.by_request(token_ids, self.numbers.tolist()))
