"""Arrays of the host to the device, without waiting for it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Copy; on a CPU the memory is shared.

    From memory that is not pinned a copy waits for all that the device still has to do. Pinned
    memory comes from torch's cache, which gives it to nobody else before the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
