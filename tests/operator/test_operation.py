"""Workers: what fails is counted by what it was, and told where it does not end."""

import asyncio
import logging
import time
from typing import Final

import pytest

from paceline_operator.errors import ConflictError
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.rounds import Rounds
from paceline_operator.settings import OperatorSettings
from paceline_operator.workqueue import WorkQueue
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.one_service import OneService
from paceline_testing.reconcilers import a_reconciler
from paceline_testing.services import a_live_service
from paceline_testing.tunings import a_tuning
from paceline_tuner.loop import TuningLoop

_KEY: Final = "default/quick"
_TRIES: Final = 7
_TURNS: Final = 200
"""Of the loop, more than one look takes: nothing is waited for but the loop itself."""


async def test_a_conflict_is_no_error_unless_one_follows_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five may be a busy moment; from the sixth in succession somebody writes against us."""
    clock, cluster = ManualClock(), FakeCluster()
    cluster.refusals["Deployment"] = ConflictError("apply", "deployments/quick", 409, "changed")
    watched = OneService(a_live_service())
    cluster.objects["InferenceService", "quick"] = watched.live
    operation = Operation(OperatorSettings(), Metrics(), queue=WorkQueue(clock))
    leader = Leader(cluster, "paceline", "lease", "a", clock)
    await leader.try_once()
    loop = TuningLoop(AiohttpPodClient(), time.time)
    tuning = a_tuning(watched, loop, operation.metrics, clock, leader)
    reconciler = a_reconciler(cluster, clock, watched)
    worker = asyncio.create_task(operation._work(reconciler, leader, tuning))

    def counted(result: str) -> float:
        labels = {"result": result}
        value = operation.metrics.registry.get_sample_value(
            "paceline_operator_reconcile_total", labels
        )
        return value or 0.0

    with caplog.at_level(logging.WARNING):
        for tried in range(1, _TRIES + 1):
            operation.queue.add(_KEY)  # at once, as news does
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            assert counted("conflict") + counted("error") == tried
    operation.queue.forget(_KEY)
    worker.cancel()

    assert tuning.untuned() == []  # its pods are tuned all the same
    assert isinstance(tuning.tuner, Rounds)
    await tuning.tuner.stop()
    assert (counted("conflict"), counted("error")) == (5.0, 2.0)
    assert [record.levelname for record in caplog.records].count("WARNING") == 2
