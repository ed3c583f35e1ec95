"""The cluster's tuning loop, run against the one local pod."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.up.serving import Tuner
from paceline_cli.up.warm_start_file import FileStore
from paceline_tuner.loop import TuningLoop


@asynccontextmanager
async def local_tuner(memory: Path | None = None) -> AsyncIterator[Tuner]:
    """A tuner with its own connections, which remembers in the file `memory`, or not at all."""
    store = FileStore(memory) if memory is not None else None
    async with HttpxPodClient() as pods:
        yield TuningLoop(pods, time.time, store)
