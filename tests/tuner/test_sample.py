"""Samples of records: what they keep, and what a decision loses by them."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_testing.telemetry import a_request, a_step, a_telemetry
from paceline_tuner.attainment import observe
from paceline_tuner.demand import ASSUMED, demand
from paceline_tuner.sample import SAMPLE, sampled_requests, sampled_steps
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord, Step
from paceline_tuner.window import Evidence, Window

_OUTCOMES = ("ok", "ok", "ok", "ok", "shed", "cancelled")


def some_requests(count: int, *, seed: int = 1, seconds: float = 5.0) -> tuple[RequestRecord, ...]:
    """Of every outcome and both lanes, as they end one after the other."""
    chance = random.Random(seed)
    return tuple(
        a_request(
            n,
            100.0 + seconds * n / count,
            arrived_at=95.0,
            lane=chance.choice(("interactive", "batch")),
            outcome=chance.choice(_OUTCOMES),
            ttft_ms=chance.lognormvariate(5.5, 0.4),
            tpot_ms=chance.lognormvariate(3.3, 0.2),
            output_tokens=chance.randint(1, 400),
            prompt_tokens=chance.randint(1, 800),
        )
        for n in range(1, count + 1)
    )


def some_steps(count: int, *, seconds: float = 5.0) -> tuple[Step, ...]:
    return tuple(
        a_step(n, 100.0 + seconds * n / count, decode=n % 4, wall_ms=20.0 + n % 7)
        for n in range(1, count + 1)
    )


@settings(deadline=None)
@given(st.integers(0, 2000), st.integers(0, 100), st.sampled_from([1.0, 5.0, 12.0, 60.0]))
def test_a_sample_stands_for_all(count: int, seed: int, seconds: float) -> None:
    """Counts by lane and outcome are exact, the order stays, and the size is bounded."""
    requests = some_requests(count, seed=seed, seconds=seconds)

    rows = sampled_requests(requests, SAMPLE)

    kept: Counter[tuple[str, str]] = Counter()
    for row in rows:
        kept[row.lane, row.outcome] += row.weight
    assert kept == Counter((record.lane, record.outcome) for record in requests)
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert len(rows) <= (SAMPLE + 24) * max(1, round(seconds / 5))


@settings(deadline=None)
@given(st.integers(0, 2000))
def test_a_sample_of_steps_stands_for_all(count: int) -> None:
    """What a sequence made that ran all the time is counted by steps with a decode."""
    steps = some_steps(count)

    rows = sampled_steps(steps, SAMPLE)

    assert sum(row.weight for row in rows) == count
    assert sum(row.num_decodes for row in rows) == sum(step.decode > 0 for step in steps)
    assert len(rows) <= SAMPLE


def test_what_is_not_many_stays_as_it_is() -> None:
    """A pod with little load is judged by each request."""
    requests, steps = some_requests(SAMPLE), some_steps(SAMPLE)

    assert [r.seq for r in sampled_requests(requests, SAMPLE)] == [r.seq for r in requests]
    assert all(row.weight == 1 for row in sampled_requests(requests, SAMPLE))
    assert all(row.num_decodes == (row.decode > 0) for row in sampled_steps(steps, SAMPLE))


def test_a_sample_of_a_sample_is_the_sample() -> None:
    """A sidecar's rows are not thinned once more."""
    rows = sampled_requests(some_requests(500), SAMPLE)

    assert sampled_requests(rows, 2 * SAMPLE) == rows


def a_minute(*, sample: int | None) -> Evidence:
    """Five thousand requests and three thousand steps, read each 5 s."""
    window, chance, seq = Window(sample), random.Random(7), 0
    for period in range(12):
        begin = 100.0 + 5 * period
        requests = []
        for n in range(417):
            seq += 1
            late = 3.0 if n % 100 == 0 else 1.0
            requests.append(
                a_request(
                    seq,
                    begin + 5 * (n + 1) / 417,
                    ttft_ms=late * chance.uniform(100.0, 400.0),
                    tpot_ms=late * chance.uniform(10.0, 40.0),
                    output_tokens=int(chance.lognormvariate(4.0, 0.8)) + 1,
                    prompt_tokens=int(chance.lognormvariate(5.0, 0.7)) + 1,
                )
            )
        steps = [a_step(seq + n, begin + (n + 1) / 50, decode=60) for n in range(250)]
        told = a_telemetry(begin + 5.0, steps=tuple(steps), requests=tuple(requests))
        window.add(told)
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def test_a_busy_minute_is_judged_as_by_all_its_requests() -> None:
    """Misses and p99s of what is late are exact; lengths are within a few hundredths."""
    sla = SLA(ttft_p99_ms=400.0, tpot_p99_ms=40.0)
    whole, thin = a_minute(sample=None), a_minute(sample=SAMPLE)

    (measured, counts), (seen, told) = observe(sla, whole), observe(sla, thin)
    asked, known = demand(whole, ASSUMED), demand(thin, ASSUMED)

    assert len(thin.requests) < len(whole.requests) / 10
    assert told == counts
    assert seen == measured
    assert thin.made == whole.made
    assert known.arrival_rps == pytest.approx(asked.arrival_rps)
    assert known.output == pytest.approx(asked.output, rel=0.03)
    assert known.prompt == pytest.approx(asked.prompt, rel=0.08)
    assert known.held == pytest.approx(asked.held, rel=0.08)
