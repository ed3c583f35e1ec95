"""Decisions keep their bounds whatever the evidence says, and cost little."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_testing.telemetry import a_fit, a_limits, a_request, a_step, a_telemetry
from paceline_tuner.conclude import hold
from paceline_tuner.decide import decide
from paceline_tuner.guard import Guard
from paceline_tuner.patch import patch_body, renewal
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_spec import SLA, Range, TuningSpec
from paceline_tuner.telemetry import (
    AdmissionValues,
    CapacityValues,
    LimitValues,
    Load,
    ModelFit,
    SketchSlice,
    TunerValues,
)
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.window import Evidence, Window

SPEC = TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one")


def an_evidence(now: float = 100.0, *, slow_gaps: int = 0, **fields: Any) -> Evidence:
    """A minute of a busy laptop."""
    window = Window()
    gaps = {200: 1000 - slow_gaps, 320: slow_gaps}  # 54 ms and 596 ms
    slices = tuple(
        SketchSlice("itl_ms", "interactive", now - 5 * i, 0.01, 0, gaps) for i in range(1, 10)
    )
    steps = tuple(a_step(i, now - 60 + i * 0.2) for i in range(300))
    requests = tuple(a_request(1000 + i, now - 50 + i) for i in range(50))
    window.add(
        a_telemetry(now, **({"steps": steps, "requests": requests, "sketches": slices} | fields))
    )
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


@settings(max_examples=200, deadline=None)
@given(
    theta=st.tuples(*[st.floats(0, 1e6)] * 5),
    fast=st.floats(0.7, 2.0),
    q_r=st.floats(0.5, 100.0),
    valid=st.booleans(),
    targets=st.tuples(*[st.one_of(st.none(), st.floats(0.1, 60_000.0))] * 3),
    bounds=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    running=st.integers(0, 64),
    slow_gaps=st.integers(0, 1000),
)
def test_chosen_limits_are_always_within_bounds(
    *,
    theta: tuple[float, ...],
    fast: float,
    q_r: float,
    valid: bool,
    targets: tuple[float | None, float | None, float | None],
    bounds: tuple[int, int],
    running: int,
    slow_gaps: int,
) -> None:
    """A model gone wrong must not leave what the user and the pod allow."""
    model = a_fit(theta=theta, fast=fast, q_r=q_r, valid=valid)
    load = Load(running=running, waiting=3, waiting_tokens=900)
    evidence = an_evidence(slow_gaps=slow_gaps, model=model, load=load)
    low, high = sorted(bounds)
    spec = replace(
        SPEC, sla=SLA(*targets), batch_size=Range(low, high), token_budget=Range(100, 1000)
    )

    decision = decide(spec, "pod", evidence, PodState(), 0.0)

    assert decision.chosen is not None
    assert low <= decision.chosen.batch_size <= high
    assert 100 <= decision.chosen.token_budget <= 1000
    assert decision.reason
    target_ms = decision.chosen.step_target_ms
    assert target_ms is None or target_ms > 0


def test_a_breach_that_the_limits_do_not_explain_tightens_the_target() -> None:
    """The model may be wrong in a way it cannot see; what is measured decides."""
    state = decide(SPEC, "pod", an_evidence(), PodState(), 0.0).acknowledged_state

    decision = decide(SPEC, "pod", an_evidence(140.0, slow_gaps=300), state, 40.0)

    assert decision.state.trim < 1.0
    assert decision.phase == "Backoff"


def test_an_untrusted_model_gives_way_to_trial_and_error() -> None:
    """Down on a breach, by a step."""
    model = a_fit(valid=False, reason="holdout error")
    state = decide(SPEC, "pod", an_evidence(model=model), PodState(), 0.0).acknowledged_state

    breach = an_evidence(160.0, slow_gaps=300, model=model)
    decision = decide(SPEC, "pod", breach, state, 60.0)

    assert decision.chosen is not None
    assert decision.chosen.batch_size < 16
    assert decision.chosen.token_budget < 512
    assert "untrusted" in decision.reason


def test_a_late_prompt_does_not_shrink_the_batch() -> None:
    """Cutting limits because requests queued makes both targets fail."""
    spec = replace(SPEC, sla=SLA(itl_p99_ms=300.0, ttft_p99_ms=300.0))
    late = tuple(a_request(1000 + i, 50.0 + i, ttft_ms=9000.0) for i in range(50))

    with_queue = decide(spec, "pod", an_evidence(requests=late), PodState(), 0.0)
    without = decide(spec, "pod", an_evidence(), PodState(), 0.0)

    assert with_queue.wanted == without.wanted
    assert with_queue.state.trim == 1.0


def test_kv_memory_bounds_the_batch() -> None:
    """More sequences than fit would only be preempted."""
    small = a_limits(capacity=CapacityValues(64, 2048, 100, 16, 4096))

    decision = decide(
        replace(SPEC, sla=SLA(itl_p99_ms=5000.0)), "pod", an_evidence(limits=small), PodState(), 0.0
    )

    assert decision.binding == "KV"
    assert decision.wanted is not None
    assert decision.wanted.batch_size * 240 <= 1600


@pytest.mark.parametrize(
    ("proposed", "expected"),
    [([20] * 6, 20), ([20, 20, 20, 20, 20, 60], 20), ([20] * 2 + [12] * 4, 16), ([40] * 6, 25)],
    ids=["same", "one-outlier", "lower-by-a-fifth", "higher-by-a-quarter"],
)
def test_the_batch_moves_slowly_and_ignores_outliers(proposed: list[int], expected: int) -> None:
    """Limits must not follow the noise of a model."""
    guard = Guard(may_jump=False, is_urgent=False, num_running=20)
    current = TunedLimits(20, 512, 200.0)

    chosen = guard.apply(current, [TunedLimits(batch, 512, 200.0) for batch in proposed])

    assert chosen.batch_size == expected


def test_a_batch_that_is_not_used_is_not_raised() -> None:
    """An idle limit says nothing of whether a higher one is safe."""
    guard = Guard(may_jump=False, is_urgent=False, num_running=9)

    assert (
        guard.apply(TunedLimits(20, 512, 200.0), [TunedLimits(40, 512, 200.0)] * 6).batch_size == 20
    )


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [(10, 0, 100), (38, 6, 100), (38, 7, 60), (70, 0, 70), (95, 0, 80)],
    ids=["far-below", "not-yet-near", "near", "what-runs-stays", "a-fifth-where-they-must-leave"],
)
def test_the_batch_is_lowered_only_where_it_limits_anything(
    running: int, waiting: int, expected: int
) -> None:
    """A cap that nothing comes near has no effect: moving it after every estimate is unrest."""
    guard = Guard(may_jump=False, is_urgent=False, num_running=running, num_waiting=waiting)

    chosen = guard.apply(TunedLimits(100, 512, 200.0), [TunedLimits(60, 512, 200.0)] * 6)

    assert chosen.batch_size == expected


@pytest.mark.parametrize(
    ("largest", "proposed", "expected"),
    [(400, 440, 512), (441, 440, 440), (511, 800, 512), (512, 800, 640)],
    ids=["cuts-nothing", "cuts-a-step", "no-step-fills-it", "steps-fill-it"],
)
def test_the_budget_moves_only_where_steps_feel_it(
    largest: int, proposed: int, expected: int
) -> None:
    """The pacer bounds steps before the budget does: the fence need not follow every fit."""
    guard = Guard(may_jump=False, is_urgent=False, num_running=20, num_tokens=largest)

    chosen = guard.apply(TunedLimits(20, 512, 200.0), [TunedLimits(20, proposed, 200.0)] * 6)

    assert chosen.token_budget == expected


@pytest.mark.parametrize(
    ("pace_ms", "target_ms"), [(50.0, 53.0), (46.0, 45.0)], ids=["same-pace", "tighter-pace"]
)
def test_the_step_target_of_paced_requests_moves_with_their_pace(
    pace_ms: float, target_ms: float
) -> None:
    """It rules only where slack is unknown: two changes for one trim are one too many."""
    guard = Guard(may_jump=False, is_urgent=True, num_running=20)

    chosen = guard.apply(
        TunedLimits(20, 512, 53.0, 50.0), [TunedLimits(20, 512, 45.0, pace_ms)] * 6
    )

    assert chosen == TunedLimits(20, 512, target_ms, pace_ms)


@pytest.mark.parametrize(
    ("running", "expected"), [(9, (100, 512)), (60, (60, 440))], ids=["idle", "in-use"]
)
def test_a_new_load_moves_only_what_it_feels(running: int, expected: tuple[int, int]) -> None:
    """A jump is no reason to move what limits nothing; a new engine's limits are set whole."""
    current, wanted = TunedLimits(100, 512, 200.0), TunedLimits(60, 440, 180.0)
    guard = Guard(may_jump=True, is_urgent=False, num_running=running, num_tokens=8 * running)

    drifted = replace(guard, by_drift=True).apply(current, [wanted])

    assert (drifted.batch_size, drifted.token_budget) == expected
    assert drifted.step_target_ms == 180.0
    assert guard.apply(current, [wanted]) == wanted


@given(
    current=st.integers(1, 1024),
    proposed=st.lists(st.integers(1, 1024), min_size=1, max_size=6),
    running=st.integers(0, 1024),
    waiting=st.integers(0, 1024),
    is_urgent=st.booleans(),
)
def test_a_guard_never_leaves_the_way_from_here_to_what_is_proposed(
    current: int, proposed: list[int], running: int, waiting: int, is_urgent: bool
) -> None:
    """Whatever runs: never past the furthest proposal, and never below all of them."""
    guard = Guard(may_jump=False, is_urgent=is_urgent, num_running=running, num_waiting=waiting)

    chosen = guard.apply(
        TunedLimits(current, 2048, 200.0), [TunedLimits(n, 2048, 200.0) for n in proposed]
    )

    assert min(current, *proposed) <= chosen.batch_size <= max(current, *proposed)
    if chosen.batch_size < current and not is_urgent:
        assert chosen.batch_size >= min(int(current * 0.8), running)


@pytest.mark.parametrize(
    ("spec", "model", "subject"),
    [
        (SPEC, a_fit(), "BatchSize"),
        (replace(SPEC, paused=True), a_fit(), "Both"),
        (replace(SPEC, mode="Fixed"), a_fit(), "Both"),
        (SPEC, a_fit(valid=False, reason="holdout error"), "Both"),
        (SPEC, a_fit(valid=False, samples=3), "Both"),
        (replace(SPEC, sla=SLA(itl_p99_ms=1.0)), a_fit(), "Both"),
    ],
    ids=["by the model", "paused", "fixed", "by trial", "learning", "no room"],
)
def test_a_decision_says_which_limits_its_reason_explains(
    spec: TuningSpec, model: ModelFit, subject: str
) -> None:
    """Only the step model has a bound of the batch size alone; the rest is said of both limits."""
    decision = decide(spec, "pod", an_evidence(model=model), PodState(), 0.0)

    assert decision.reason_subject == subject


def test_new_limits_and_new_configuration_go_under_the_next_epoch() -> None:
    """The pod refuses anything else."""
    evidence = an_evidence(limits=a_limits(config_hash="old", requested=LimitValues(64, 2048)))
    decision = decide(SPEC, "pod", evidence, PodState(), 0.0)

    body = patch_body(SPEC, evidence.limits, decision)

    assert body["epoch"] == 4
    assert body["lease_s"] == 60.0
    assert body["config_hash"] == "one"
    assert body["sla"] == {
        "ttft_p99_ms": None,
        "tpot_p99_ms": None,
        "itl_p99_ms": 300.0,
        "objective": 0.99,
    }
    assert {"max_batch_size", "token_budget", "step_target_ms", "admission"} <= body.keys()


@pytest.mark.parametrize("is_newer", [False, True], ids=["0.2", "newer"])
def test_a_sidecar_is_sent_no_field_of_admission_that_it_would_refuse(is_newer: bool) -> None:
    """An upgrade of the operator leaves pods with their images; newer ones are sent all of it."""
    known = {"admission": AdmissionValues(max_items_per_request=7)} if is_newer else {}
    evidence = an_evidence(limits=a_limits(config_hash="old", **known))
    decision = decide(SPEC, "pod", evidence, PodState(), 0.0)

    body = patch_body(SPEC, evidence.limits, decision)

    admission = body["admission"]
    assert isinstance(admission, dict)
    assert ("keys" in admission) == ("max_items_per_request" in admission) == is_newer


@pytest.mark.parametrize("is_newer", [False, True], ids=["0.2", "newer"])
def test_a_sidecar_is_told_why_where_it_would_not_refuse_it(is_newer: bool) -> None:
    """It shows the reason on its live page."""
    known = {"reason": ""} if is_newer else {}
    evidence = an_evidence(limits=a_limits(requested=LimitValues(64, 2048), **known))
    decision = decide(SPEC, "pod", evidence, PodState(), 0.0)

    body = patch_body(SPEC, evidence.limits, decision)

    assert body.get("reason") == (decision.reason if is_newer else None)


@pytest.mark.parametrize("is_newer", [False, True], ids=["0.2", "newer"])
def test_a_sidecar_is_told_of_the_tuner_where_it_would_not_refuse_it(is_newer: bool) -> None:
    """With a renewal, too, and with one that is sent without telemetry."""
    known = {"tuner": TunerValues()} if is_newer else {}
    evidence = an_evidence(limits=a_limits(**known))
    decision = decide(replace(SPEC, paused=True), "pod", evidence, PodState(), 0.0)
    unseen = hold("pod", PodState(), 0.0, "no answer", is_stale=True)

    seen_body = patch_body(SPEC, evidence.limits, decision)
    blind_body = renewal(evidence.limits, unseen)

    assert seen_body["epoch"] == blind_body["epoch"] == evidence.limits.epoch
    assert [body.get("tuner") for body in (seen_body, blind_body)] == (
        [
            {"phase": decision.phase, "verdict": decision.verdict, "binding": decision.binding},
            {"phase": "Frozen", "verdict": "Unknown", "binding": "None"},
        ]
        if is_newer
        else [None, None]
    )


def test_without_a_difference_only_the_lease_is_renewed() -> None:
    """An equal epoch changes nothing."""
    evidence = an_evidence()
    decision = decide(replace(SPEC, paused=True), "pod", evidence, PodState(), 0.0)

    assert patch_body(SPEC, evidence.limits, decision) == {"epoch": 3, "lease_s": 60.0}


def test_a_pod_that_holds_more_than_it_may_is_brought_back_at_once() -> None:
    """A fifth at a time would take minutes back into bounds that the user has just drawn."""
    spec = replace(SPEC, batch_size=Range(1, 8), token_budget=Range(64, 400))
    evidence = an_evidence(limits=a_limits(requested=LimitValues(64, 2048, 200.0)))
    state = decide(spec, "pod", evidence, PodState(), 0.0).acknowledged_state

    decision = decide(spec, "pod", an_evidence(105.0, limits=evidence.limits), state, 5.0)

    assert decision.chosen is not None
    assert decision.chosen.batch_size <= 8
    assert decision.chosen.token_budget <= 400
