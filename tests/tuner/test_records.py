"""Records read as columns tell the same as records read one by one."""

import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from paceline_testing.telemetry import a_request, a_step, a_telemetry
from paceline_tuner.attainment import observe, pace
from paceline_tuner.demand import ASSUMED, demand
from paceline_tuner.latency_sketch import weighted_quantile
from paceline_tuner.records import after, column, quantile
from paceline_tuner.sample import SAMPLE
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord, RequestRow, Step, StepRow
from paceline_tuner.telemetry_validation import (
    is_valid_request,
    is_valid_step,
    valid_requests,
    valid_steps,
)
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


def test_records_come_back_as_they_went_in() -> None:
    """Every field: what looks at records one by one misses nothing."""
    steps = (
        StepRow(1, 998.0, 21.5, 7, 130, 2**20, 2**40, 9, 3, 77, 1, 12, 64, 20.1, False, 0.25, 41),
        StepRow(2**50, 999.0, 1e-3, 0, 0, 0, 0, 0, 0, draft_ms=0.125, weight=10**9, decodes=10**8),
    )
    requests = (
        RequestRow(3, 990.0, 998.5, 40, 7, "ok", "batch", 1.5, 20.25, None, 3.0, 16, 12, 4),
        RequestRow(4, 991.0, 998.5, 41, 0, "unheard of", "", None, None, 0.0),
    )
    window = Window()

    window.add(a_telemetry(1000.0, step_rows=steps, request_rows=requests))

    evidence = evidence_of(window)
    assert evidence.steps == steps
    assert evidence.requests == requests
    assert repr((*evidence.steps, *evidence.requests)) == repr((*steps, *requests))


@pytest.mark.parametrize("number", [2**60, -(2**60), 10**400])
@pytest.mark.parametrize(
    "name", [field.name for field in fields(Step) if field.type is int and field.name != "weight"]
)
def test_a_step_with_a_number_beyond_counting_is_left_out(name: str, number: int) -> None:
    """No pod has run so many steps, and a column could not hold it."""
    window, odd = Window(SAMPLE), msgspec.structs.replace(a_step(2, 999.5), **{name: number})

    window.add(a_telemetry(1000.0, steps=(a_step(1, 999.0), odd)))

    assert [step.seq for step in evidence_of(window).steps] == [1]


@pytest.mark.parametrize("number", [2**60, -(2**60), 10**400])
@pytest.mark.parametrize("name", [f.name for f in fields(RequestRecord) if f.type is int])
def test_a_request_with_a_number_beyond_counting_is_left_out(name: str, number: int) -> None:
    """As a step with one."""
    window, odd = Window(SAMPLE), msgspec.structs.replace(a_request(2, 999.5), **{name: number})

    window.add(a_telemetry(1000.0, requests=(a_request(1, 999.0), odd)))

    assert [record.seq for record in evidence_of(window).requests] == [1]


def test_steps_that_stand_for_billions_are_counted() -> None:
    """Each weight may be valid where their sum is large."""
    window = Window(SAMPLE)
    steps = tuple(a_step(n, 995.0 + n / 100, weight=10**9) for n in range(400))

    window.add(a_telemetry(1000.0, steps=steps))

    assert column(evidence_of(window).steps, "weight").sum() == 400 * 10**9


def test_of_a_sample_what_decisions_read_is_kept() -> None:
    """Thousands of pods do without the rest, which restored records have no value of."""
    step, window = a_step(1, 999.0, decode=3, host_ms=0.5, kv_used=7), Window(SAMPLE)
    request = a_request(2, 999.5, queue_ms=4.0, ttft_ms=None, cached_tokens=5)

    window.add(a_telemetry(1000.0, steps=(step,), requests=(request,)))

    evidence = evidence_of(window)
    assert [s.decode for s in evidence.steps] == column(evidence.steps, "decode").tolist() == [3]
    assert [(s.host_ms, s.kv_used) for s in evidence.steps] == [(0.0, 0)]
    assert [(r.ttft_ms, r.cached_tokens) for r in evidence.requests] == [(None, 5)]
    with pytest.raises(KeyError):
        column(evidence.steps, "host_ms")


def test_a_pod_that_finds_new_words_fills_no_memory() -> None:
    """Its outcomes are not known to us, and each comes back as it was."""
    window = Window(SAMPLE)
    for n in range(2000):
        outcome = "ok" if n % 3 else f"odd-{n}"
        window.add(a_telemetry(1000.0 + n, requests=(a_request(n, 1000.0 + n, outcome=outcome),)))
        evidence_of(window)  # reads what was added so far

    evidence = evidence_of(window)
    found = [(r.seq, r.outcome) for r in evidence.requests]
    assert found == [(n, "ok" if n % 3 else f"odd-{n}") for n in range(2000 - len(found), 2000)]
    assert column(evidence.requests, "is_ok").sum() == sum(word == "ok" for _, word in found)
    kept = window._requests._words
    assert sum(map(len, kept)) < 200


ODD = st.sampled_from(
    [
        *(-1, 0, 1, 0.5, 7, 998.0, 1001.5, 1e9, 1e9 + 1, 2**31),
        *(2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 10**400),
        *(math.nan, math.inf, -math.inf, 5e-324, None),
    ]
)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Step.__struct_fields__), ODD), max_size=3)
)
@settings(deadline=None)
def test_steps_are_valid_together_where_each_is(
    spoilt: list[tuple[int, str, float | None]],
) -> None:
    """What a look at all of them lets through, a look at each would have let through."""
    steps = [a_step(n, 996.0 + n) for n in range(4)]
    for place, name, value in spoilt:
        if value is not None or name == "decodes":
            steps[place] = msgspec.structs.replace(steps[place], **{name: value})

    found = valid_steps(steps, 996.0, 1000.0)

    assert found is None or all(is_valid_step(step, 1000.0) for step in steps)
    assert spoilt or found is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(RequestRecord.__struct_fields__), ODD),
        max_size=3,
    )
)
@settings(deadline=None)
def test_requests_are_valid_together_where_each_is(
    spoilt: list[tuple[int, str, float | None]],
) -> None:
    """As steps are."""
    optional = {"queue_ms", "ttft_ms", "tpot_ms", "itl_max_ms"}
    requests = [a_request(n, 996.0 + n) for n in range(4)]
    for place, name, value in spoilt:
        if name not in {"outcome", "lane"} and (value is not None or name in optional):
            requests[place] = msgspec.structs.replace(requests[place], **{name: value})

    found = valid_requests(requests, 996.0, 1000.0)

    assert found is None or all(is_valid_request(record, 1000.0) for record in requests)
    assert spoilt or found is not None
