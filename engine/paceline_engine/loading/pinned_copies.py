"""Copies a mapped file to a GPU through pinned memory: one piece is read while another is sent.

A copy from memory that is not pinned goes through a small buffer of the driver's, and the host
waits for all of it. Here two buffers take turns, whatever the size of a tensor, so that the pages
of the next piece come from the disk while the last one crosses the bus.
"""

import torch
from torch import Tensor

# Large enough that a copy's start does not count, small beside what a pod may pin.
_PIECE_BYTES = 64 << 20


class PinnedCopies:
    """Two buffers on the host; on a CPU nothing is pinned, and they serve tests."""

    def __init__(self, device: torch.device, piece_bytes: int = _PIECE_BYTES) -> None:
        self._device = device
        is_gpu = device.type == "cuda"
        self._buffers = tuple(
            torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(2)
        )
        self._sent = tuple(torch.cuda.Event() for _ in self._buffers) if is_gpu else ()
        self._turn = 0

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of the host to the device, in its own type: fewest bytes cross the bus."""
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = (x.contiguous().view(-1).view(torch.uint8) for x in (tensor, out))
        piece_bytes = len(self._buffers[0])
        for piece, place in zip(source.split(piece_bytes), target.split(piece_bytes), strict=True):
            self._send(piece, place)
        return out

    def _send(self, piece: Tensor, place: Tensor) -> None:
        turn, self._turn = self._turn, 1 - self._turn
        staged = self._buffers[turn][: len(piece)]
        if self._sent:
            self._sent[turn].synchronize()  # an event that was never recorded is complete
        staged.copy_(piece)
        place.copy_(staged, non_blocking=True)
        if self._sent:
            self._sent[turn].record()
