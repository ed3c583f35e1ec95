"""Plays on the real engine: open-loop clients, limits and telemetry by the runtime API."""

import asyncio
import time
from itertools import cycle
from random import Random

import httpx

from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.prompts import excerpt
from paceline_cli.traffic.record import ClientRecord
from paceline_cli.up.live import LiveService
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodClient
from paceline_tuner.service_target import PodTarget
from paceline_wire.limits import Limits
from sim_to_real.fitted import LEAST_STEPS
from sim_to_real.recording import Recording, WatchedPod
from sim_to_real.run_setup import INTERVAL_S, RunSetup
from sim_to_real.served import BATCH, BUDGET

_STAGES = ((BATCH, BUDGET), (BATCH, 192), (16, 64), (4, 24))
"""Limits under which a profile looks at the engine: chunks of every size."""
_ENOUGH_STEPS = 2 * LEAST_STEPS
"""A busy machine is looked at for longer than was asked."""
_CROWDS = (1, 2, 4, 8, 14)
_PATIENCE_S = 60.0
_LEASE_S = 600.0
_REPORTED_S = 0.6
"""After which the engine has told of its last step: it reports five times a second."""


class RealPod:
    """The served engine, one run at a time."""

    def __init__(self, live: LiveService, pods: PodClient, client: httpx.AsyncClient) -> None:
        """Reach the pod through both of its interfaces."""
        self._live = live
        self._client = client
        self._inner = pods
        self._watched = WatchedPod(pods)
        self.refused: list[ClientRecord] = []
        """What was not answered to its end, over all runs; the profile's own are not counted."""

    async def profile(self, seconds: float, seed: int) -> Recording:
        """Record the engine under crowds of every size, without a pacer, from its first step on."""
        random = Random(seed)
        until = time.monotonic() + seconds
        # In turns: a machine that gets slower meanwhile must not look like a costly shape of step.
        for batch, budget in cycle(_STAGES):
            await self._hold(Limits(batch, budget))
            await self._drive(_crowd(random))
            await self._read()
            if time.monotonic() > until and len(self._watched.recording.steps) >= _ENOUGH_STEPS:
                break
        await asyncio.sleep(_REPORTED_S)
        await self._read()
        self.refused.clear()
        return self._watched.recording

    async def play(self, planned: tuple[PlannedRequest, ...], setup: RunSetup) -> Recording:
        """Serve the load from its first arrival to its last token."""
        await self._hold(setup.start)
        await self._watched.begin(self._pod)
        ticks = asyncio.create_task(self._ticks(setup))
        try:
            await self._drive(planned)
            await asyncio.sleep(_REPORTED_S)
        finally:
            ticks.cancel()
            await asyncio.wait((ticks,))
        if not ticks.cancelled() and (error := ticks.exception()) is not None:
            raise error
        await self._read()
        return self._watched.recording

    @property
    def _pod(self) -> PodTarget:
        return self._live.target.pods[0]

    async def _ticks(self, setup: RunSetup) -> None:
        loop = TuningLoop(self._watched, time.time)
        while True:
            await asyncio.sleep(INTERVAL_S)
            if setup.mode == "tuned":
                await loop.tick(setup.target(self._pod))
            else:
                await self._read()

    async def _read(self) -> None:
        await self._watched.get_telemetry(self._pod, self._watched.next)

    async def _drive(self, planned: tuple[PlannedRequest, ...]) -> None:
        asking = Asking(self._live.service.served_name, timeout_s=_PATIENCE_S)
        await drive_open(self._client, planned, asking, self._keep)

    def _keep(self, record: ClientRecord) -> None:
        if record.outcome != "ok":
            self.refused.append(record)

    async def _hold(self, limits: Limits) -> None:
        answer = await self._inner.get_telemetry(self._pod, self._watched.next)
        epoch = answer.limits.epoch if answer.limits is not None else 0
        await self._inner.patch_limits(
            self._pod,
            {
                "max_batch_size": limits.max_batch_size,
                "token_budget": limits.token_budget,
                "step_target_ms": limits.step_target_ms,
                "epoch": epoch + 1,
                "lease_s": _LEASE_S,
            },
        )


def _crowd(random: Random) -> tuple[PlannedRequest, ...]:
    """Send a number of requests within half a second, from one alone to more than fit."""
    corpus, size = help_topics(), random.choice(_CROWDS)
    return tuple(
        PlannedRequest(at_s, excerpt(corpus, random.randint(8, 400), random), random.randint(4, 40))
        for at_s in sorted(random.uniform(0, 0.5) for _ in range(size))
    )
