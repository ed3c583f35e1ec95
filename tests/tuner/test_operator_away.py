"""The operator is away for half an hour: pods serve on, and L0 keeps the SLA by itself."""

import pytest

from paceline_sim.state import FAILED, OK
from paceline_testing.simulated import a_laptop, clients
from paceline_testing.trial import Trial
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import SLA, TuningSpec

pytestmark = pytest.mark.slow

_AWAY_S = 1800.0
_ITL_MS = 300.0


@pytest.mark.parametrize("seed", [1, 2])
async def test_pods_keep_the_sla_for_half_an_hour_without_the_operator(seed: int) -> None:
    """The lease of the limits ends after a minute: certified limits and the pacer go on.

    An operator that comes back with an empty memory finds the SLA kept, and keeps it.
    """
    requests = clients(0.8, seconds=600 + _AWAY_S, seed=seed)
    spec = TuningSpec(sla=SLA(itl_p99_ms=_ITL_MS), config_hash="one")
    trial = Trial(a_laptop(requests, seed=seed), spec)
    await trial.run(300)

    trial.untuned(_AWAY_S)
    away = trial.slow_gaps(_ITL_MS, last_s=_AWAY_S)
    trial.loop = TuningLoop(trial, lambda: trial.at)
    trial.at += _AWAY_S
    report = await trial.run(120)

    outcomes = trial.engine.jobs["outcome"]
    assert (outcomes == OK).sum() > 0.7 * (_AWAY_S + 300)
    assert (outcomes == FAILED).sum() == 0
    assert away <= 0.01
    assert trial.slow_gaps(_ITL_MS, last_s=120) <= 0.01
    assert [pod.error for pod in report.pods] == [""]
