"""The cluster's tuning loop, run against the one local pod."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from paceline_operator.local.memory_file import FileStore
from paceline_operator.local.serving import Tuner
from paceline_operator.pods import HttpPodClient
from paceline_operator.tuning_loop import TuningLoop


@asynccontextmanager
async def local_tuner(memory: Path | None = None) -> AsyncIterator[Tuner]:
    """A tuner with its own connections, which remembers in the file `memory`, or not at all."""
    store = FileStore(memory) if memory is not None else None
    async with HttpPodClient() as pods:
        yield TuningLoop(pods, time.time, store)
