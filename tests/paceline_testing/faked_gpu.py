"""The engine's real process on a machine that is said to have a GPU, for what it refuses at start.

`python -m paceline_testing.faked_gpu` takes the settings of `python -m paceline_engine`; a machine
of `MACHINES` is named by `FAKED_GPU`. Nothing can be computed there.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from paceline_engine.__main__ import main
from paceline_engine.loading import load, memory
from paceline_engine.loading.device import HostMachine, VisibleGpu

_CUDA = "13.2"
_MEMORY = memory.DeviceMemory(total_bytes=8 << 30, free_bytes=10_000)
MACHINES = {
    "H200, all of it taken": HostMachine(gpus=(VisibleGpu("NVIDIA H200", (9, 0)),), cuda=_CUDA),
    "T4": HostMachine(gpus=(VisibleGpu("Tesla T4", (7, 5)),), cuda=_CUDA, has_driver=True),
    "old driver": HostMachine(
        cuda=_CUDA,
        has_driver=True,
        driver="470.1",
        complaint="The NVIDIA driver on your system is too old.",
    ),
}


@contextmanager
def said_to_be(name: str) -> Iterator[None]:
    """Let the engine see this machine wherever it looks."""
    with (
        mock.patch.object(load, "look", return_value=MACHINES[name]),
        mock.patch.object(memory, "measure", return_value=_MEMORY),
        mock.patch.object(torch.cuda, "set_device"),
    ):
        yield


if __name__ == "__main__":
    with said_to_be(os.environ["FAKED_GPU"]):
        sys.exit(main())
