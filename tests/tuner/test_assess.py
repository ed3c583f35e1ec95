"""λ* of a pod is what the step model promises, and at most what the pod gives when it is full."""

import pytest

from paceline_testing.telemetry import a_fit, a_request, a_step, a_telemetry
from paceline_tuner.decide import decide
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_spec import SLA, Range, TuningSpec
from paceline_tuner.telemetry import Load
from paceline_tuner.window import Window

BATCH = 6
OUTPUT = 16
NOW = 100.0
SPEC = TuningSpec(
    sla=SLA(itl_p99_ms=300.0, ttft_p99_ms=3000.0),
    config_hash="one",
    batch_size=Range(BATCH, BATCH),
)


def capacity_rps(
    *, waiting: int, running: int = BATCH, tokens_per_s: float = 120.0, ttft_ms: float = 9000.0
) -> float:
    """Decide on a minute in which the engine ran so many, and made so many tokens a second."""
    window = Window()
    steps = tuple(
        a_step(i, NOW - 60 + i * 0.2, running=running, waiting=waiting, decode=running)
        for i in range(300)
    )
    requests = tuple(
        a_request(1000 + i, NOW - 50 + i, output_tokens=OUTPUT, ttft_ms=ttft_ms) for i in range(50)
    )
    begun = Load(running=running, waiting=waiting, waiting_tokens=0, output_tokens=0)
    ended = Load(
        running=running, waiting=waiting, waiting_tokens=0, output_tokens=int(60 * tokens_per_s)
    )
    window.add(a_telemetry(NOW - 60, load=begun))
    window.add(a_telemetry(NOW, load=ended, model=a_fit(), steps=steps, requests=requests))
    evidence = window.evidence(60.0)
    assert evidence is not None
    found = decide(SPEC, "pod", evidence, PodState(), 0.0).prediction.capacity_rps
    assert found is not None
    return found


def test_a_full_pod_promises_no_more_than_it_serves() -> None:
    """Its steps are as quick as the model says, and others have its core between them.

    Else an autoscaler would see room where a queue stands.
    """
    assert capacity_rps(waiting=0) > 1.5
    assert capacity_rps(waiting=30, tokens_per_s=16.0) == pytest.approx(1.0, rel=0.05)


def test_a_full_pod_that_serves_more_than_its_model_says_is_not_trusted_with_more() -> None:
    """The model leaves a tenth free for bursts, which a full batch does not."""
    assert capacity_rps(waiting=30, tokens_per_s=1e4) == capacity_rps(waiting=0)


def test_a_full_pod_that_keeps_its_sla_is_not_held_to_what_it_serves() -> None:
    """The queue may be the batch lane's, which no pod is to be added for."""
    kept = capacity_rps(waiting=30, tokens_per_s=16.0, ttft_ms=300.0)

    assert kept == capacity_rps(waiting=0, ttft_ms=300.0)


def test_a_pod_with_room_may_promise_more_than_it_serves() -> None:
    """What it serves is what is asked of it, or what waits for room in the KV cache."""
    assert capacity_rps(waiting=0, tokens_per_s=1.0) == capacity_rps(waiting=0)
    assert capacity_rps(waiting=30, running=2, tokens_per_s=1.0) == capacity_rps(
        waiting=30, running=2, tokens_per_s=1e4
    )
