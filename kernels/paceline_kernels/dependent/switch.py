"""Whether kernels are launched before the one before them has ended."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from paceline_kernels.tuned import blocks_of

LEAST_CAPABILITY = (9, 0)
_OFF: Mapping[str, bool] = {}
_ON: Mapping[str, bool] = {"IS_DEPENDENT": True, "launch_pdl": True}


class Switch:
    """Gives the options of a dependent launch, where it is on and the GPU knows of it."""

    def __init__(self) -> None:
        self.is_on = False
        """Of this process. Kernels launched or captured from here on follow it."""

    def __call__(self, device: torch.device) -> Mapping[str, bool]:
        """Return the options that a launcher adds: none if the switch is off or the GPU too old."""
        if self.is_on and blocks_of.capability(device) >= LEAST_CAPABILITY:
            return _ON
        return _OFF

    @contextmanager
    def turned(self, *, on: bool) -> Iterator[None]:
        """Turn it on or off until the end of the block."""
        before, self.is_on = self.is_on, on
        try:
            yield
        finally:
            self.is_on = before


dependent = Switch()
"""The launchers' own."""
