"""The cluster's tuning loop, run against the one local pod."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline_operator.local.serving import Tuner
from paceline_operator.pods import HttpPodClient
from paceline_operator.tuning_loop import TuningLoop


@asynccontextmanager
async def local_tuner() -> AsyncIterator[Tuner]:
    """A tuner with its own connections."""
    async with HttpPodClient() as pods:
        yield TuningLoop(pods, clock=time.time)
