"""Records read as columns tell the same as records read one by one."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_testing.telemetry import a_request, a_step, a_telemetry
from paceline_tuner.attainment import observe, pace
from paceline_tuner.demand import ASSUMED, demand
from paceline_tuner.latency_sketch import weighted_quantile
from paceline_tuner.records import after, column, quantile
from paceline_tuner.sample import SAMPLE
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord, Step
from paceline_tuner.window import Evidence, Window

SLAS = {
    "ttft-itl": SLA(ttft_p99_ms=120.0, itl_p99_ms=50.0),
    "tpot": SLA(tpot_p99_ms=30.0),
    "e2e": SLA(ttft_p99_ms=300.0, e2e_p99_ms=900.0, objective=0.9),
}


def a_window(seed: int, *, sample: int | None = None) -> Window:
    """A minute of three answers: some are refused, some clients leave, some never wait."""
    draw, window = random.Random(seed), Window(sample)
    for answer in range(3):
        begin = 1000.0 + 20 * answer
        steps = [
            a_step(9000 * answer + n, begin + n / 10, decode=draw.randint(0, 60), wall_ms=20.0 + n)
            for n in range(190)
        ]
        requests = [a_draw(draw, 9000 * answer + 200 + n, begin + n / 10) for n in range(190)]
        now = begin + 20
        window.add(a_telemetry(now, steps=tuple(steps), requests=tuple(requests)))
    return window


def a_draw(draw: random.Random, seq: int, end: float) -> RequestRecord:
    """One request, which may have come to any end."""
    is_refused = draw.random() < 0.1
    return a_request(
        seq,
        end,
        arrived_at=end - draw.random(),
        outcome="rejected" if is_refused else draw.choice(["ok", "ok", "ok", "cancelled"]),
        ttft_ms=None if is_refused else draw.lognormvariate(4.5, 0.5),
        tpot_ms=None if draw.random() < 0.1 else draw.lognormvariate(3.0, 0.5),
        prompt_tokens=draw.randint(1, 900),
        output_tokens=0 if is_refused else draw.randint(1, 300),
    )


def evidence_of(window: Window) -> Evidence:
    """A whole minute of it."""
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def one_by_one(evidence: Evidence) -> Evidence:
    """The same evidence, with its records as objects."""
    return replace(evidence, steps=tuple(evidence.steps), requests=tuple(evidence.requests))


@pytest.mark.parametrize("sla", SLAS.values(), ids=SLAS)
@pytest.mark.parametrize("sample", [None, SAMPLE])
@pytest.mark.parametrize("seed", range(3))
def test_columns_tell_the_same_as_objects(sla: SLA, sample: int | None, seed: int) -> None:
    """What is measured does not depend on how records are held."""
    evidence = evidence_of(a_window(seed, sample=sample))
    plain = one_by_one(evidence)

    assert observe(sla, evidence) == observe(sla, plain)
    assert pace(sla, evidence, 1040.0) == pace(sla, plain, 1040.0)
    assert demand(evidence, ASSUMED) == demand(plain, ASSUMED)


@pytest.mark.parametrize("part", [slice(30, 400), slice(-5, None), slice(1, 90, 3), slice(600, 9)])
def test_a_part_is_the_part_of_the_whole(part: slice) -> None:
    """Across the bounds of answers too, and with each column beside its record."""
    requests = evidence_of(a_window(1)).requests
    found = requests[part]

    assert tuple(found) == tuple(requests)[part]
    assert column(found, "seq").tolist() == [record.seq for record in tuple(requests)[part]]


def test_what_came_after_a_number_is_found() -> None:
    """The decision before this one has counted the others."""
    evidence = evidence_of(a_window(1))

    assert [step.seq for step in after(evidence.steps, 18_186)] == [18_187, 18_188, 18_189]
    assert len(after(evidence.steps, 0)) == len(evidence.steps) - 1
    assert not after(evidence.steps, 99_999)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 90)), max_size=60),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
@settings(deadline=None)
def test_quantiles_of_columns_are_those_of_pairs(
    pairs: list[tuple[float, int]], share: float
) -> None:
    """Whichever way a window is held, its p99 is one number."""
    steps = [
        a_step(n, 1.0, wall_ms=value, weight=weight) for n, (value, weight) in enumerate(pairs)
    ]

    found = quantile(column(steps, "wall_ms"), column(steps, "weight"), share)

    assert found == weighted_quantile(pairs, share)


@pytest.mark.parametrize("seq", [2**60, 10**400])
def test_a_number_beyond_counting_is_left_out(seq: int) -> None:
    """No pod has run so many steps, and a column could not hold it."""
    window = Window()
    steps: tuple[Step, ...] = (a_step(1, 999.0), a_step(seq, 999.5))

    window.add(a_telemetry(1000.0, steps=steps, requests=(a_request(seq, 999.9),)))

    evidence = evidence_of(window)
    assert [step.seq for step in evidence.steps] == [1]
    assert not evidence.requests
