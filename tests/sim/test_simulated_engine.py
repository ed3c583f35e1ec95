"""What the simulated engine owes those who draw conclusions from it."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing import NoPacer, make_pacer
from paceline_sim.gaps import gap_quantile_ms
from paceline_sim.hardware import H100_8B, Disturbance
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import DECODE, FAILED, OK, PREFILL, SHED, UNFINISHED, Records
from paceline_testing.simulated import a_crowd, a_list, an_engine
from paceline_wire.limits import Capacity, Limits

rows_of_requests = st.lists(
    st.tuples(
        st.floats(0, 2.0),
        st.integers(1, 300),
        st.integers(1, 60),
        st.integers(0, 200),
        st.sampled_from((0, 1)),
    ).map(lambda row: (*row[:3], min(row[3], row[1] - 1), row[4])),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(
    rows=rows_of_requests,
    batch=st.integers(1, 16),
    blocks=st.integers(8, 80),
    stops=st.lists(st.floats(0.0, 4.0), max_size=4),
    shed_ttft_ms=st.none() | st.floats(1.0, 400.0),
)
def test_nothing_is_lost_and_nothing_is_made_up(
    rows: list[tuple[float, int, int, int, int]],
    batch: int,
    blocks: int,
    stops: list[float],
    shed_ttft_ms: float | None,
) -> None:
    """Requests, tokens and blocks add up, read from the records by plain Python."""
    engine = an_engine(
        rows, batch=batch, budget=batch + 40, blocks=blocks, shed_ttft_ms=shed_ttft_ms
    )

    for stop in sorted(stops):
        engine.run_until(stop)
        check_books(engine)
    engine.run_until(3600.0)
    check_books(engine)

    assert UNFINISHED not in engine.outcome.tolist()
    assert engine.totals[0]["free_blocks"] == blocks
    assert (engine.running, engine.waiting, engine.waiting_tokens) == (0, 0, 0)


def rows_of(records: Records) -> list[dict[str, Any]]:
    """Name every value of every record."""
    names = records.dtype.names or ()
    return [dict(zip(names, values, strict=True)) for values in records.tolist()]


def check_books(engine: SimulatedEngine) -> None:
    """Re-read every request and step."""
    jobs = rows_of(engine.jobs)
    ended = engine.ended.tolist()
    assert len(ended) == len(set(ended))
    assert {i for i, job in enumerate(jobs) if job["outcome"] != UNFINISHED} == set(ended)
    for job in jobs:
        room = min(engine.capacity.max_model_len, engine.capacity.num_blocks * 16)
        has_arrived = job["outcome"] != UNFINISHED or job["state"] != 0
        fits = job["prompt"] + job["output"] <= room
        assert has_arrived == (job["arrival_s"] <= engine.now)
        assert (job["outcome"] == FAILED) == (has_arrived and not fits)
        assert job["outcome"] != OK or job["tokens"] == job["output"]
        assert job["outcome"] != SHED or job["tokens"] == 0
        needed = math.ceil(job["computed"] / 16) if job["state"] in {PREFILL, DECODE} else 0
        assert job["blocks"] >= needed
        assert (job["blocks"] > 0) == (job["state"] in {PREFILL, DECODE})
    held = sum(job["blocks"] for job in jobs)
    assert engine.capacity.num_blocks - int(engine.totals[0]["free_blocks"]) == held

    given_tokens = sum(job["tokens"] for job in jobs)
    with_first = sum(job["tokens"] > 0 for job in jobs)
    assert given_tokens == int(engine.totals[0]["output_tokens"])
    assert int(engine.gap_counts.sum()) == given_tokens - with_first
    last_at = 0.0
    for row in rows_of(engine.steps):
        assert row["decode"] + row["prefill"] <= row["paced_tokens"] <= row["token_budget"]
        assert row["decode"] + row["prefill"] > 0
        assert row["running"] <= engine.limits.max_batch_size
        assert row["kv_used"] <= engine.capacity.num_blocks
        assert row["at"] >= last_at + row["wall_ms"] / 1e3 - 1e-9
        last_at = row["at"]
    if not engine.totals[0]["preemptions"]:
        # Without recomputation every served prompt is prefilled once, but for what was cached.
        served = [job for job in jobs if job["state"] != 0 and job["tokens"] > 0]
        begun = sum(job["computed"] - job["hits"] for job in jobs if job["state"] == PREFILL)
        once = sum(job["prompt"] - job["hits"] for job in served)
        assert int(engine.steps["prefill"].sum()) == once + begun
        decoded = sum(job["tokens"] - 1 for job in served)
        assert int(engine.steps["decode"].sum()) == decoded


def test_the_same_seed_gives_the_same_run() -> None:
    """Two runs differ in nothing, and another seed's differs."""
    runs = [
        an_engine(a_crowd(20, 30), hardware=H100_8B, seed=seed, pacer=pacer)
        for seed, pacer in ((1, None), (1, None), (2, None), (1, NoPacer()))
    ]
    for run in runs:
        run.run_until(30.0)

    first, again, other, unpaced = (run.steps["wall_ms"].tolist() for run in runs)
    assert first == again
    assert first == unpaced
    assert first != other


def test_a_run_may_be_cut_anywhere() -> None:
    """Reading telemetry every second changes nothing."""
    whole, cut = (an_engine(a_crowd(20, 20), hardware=H100_8B) for _ in range(2))

    whole.run_until(20.0)
    for second in range(1, 21):
        cut.run_until(float(second))

    assert whole.steps.tolist() == cut.steps.tolist()
    assert whole.ttft_ms.tolist() == cut.ttft_ms.tolist()


def test_a_lone_request_takes_the_time_of_its_steps() -> None:
    """Two chunks of 100 tokens, then one token a step: times to be reckoned by hand."""
    engine = an_engine([(1.0, 200, 4)], budget=100)

    engine.run_until(2.0)

    assert engine.steps["prefill"].tolist() == [100, 100, 0, 0, 0]
    assert engine.steps["attention"].tolist() == [5000, 15000, 0, 0, 0]
    assert engine.steps["context"].tolist() == [0, 0, 201, 202, 203]
    assert engine.ttft_ms.tolist() == pytest.approx([22.0])
    assert engine.tpot_ms.tolist() == pytest.approx([10.01])
    assert engine.itl_max_ms.tolist() == pytest.approx([10.01])
    assert engine.finished_s.tolist() == pytest.approx([1.05203])
    assert gap_quantile_ms(engine.gap_counts, 0.99) == pytest.approx(10.01, rel=0.01)
    assert engine.gap_counts.sum() == 3


def test_a_lowered_batch_size_drains() -> None:
    """Nothing that runs is touched, nothing is admitted before there is a row."""
    engine = an_engine([(0.0, 10, 50 + i) for i in range(12)], batch=8)
    engine.run_until(0.1)
    assert engine.running == 8

    engine.limits = Limits(3, 512)
    engine.run_until(0.3)
    assert engine.running == 8
    engine.run_until(10.0)

    running = engine.steps["running"]
    assert np.all(np.diff(running[running >= 3]) <= 0)
    drained = int(np.argmax((engine.steps["seq"] > 40) & (running <= 3)))
    assert drained > 0
    assert running[drained:].max() == 3
    assert engine.outcome.tolist() == [OK] * 12
    assert engine.totals[0]["preemptions"] == 0


def test_a_full_cache_preempts_the_newest() -> None:
    """Who came last gives way, is computed again, and loses no token."""
    # Two requests of 5 blocks each in the end, and 8 blocks.
    engine = an_engine([(0.0, 40, 40), (0.001, 40, 40)], blocks=8)

    engine.run_until(10.0)

    first, second = engine.jobs
    assert (first["preemptions"], second["preemptions"]) == (0, 1)
    assert engine.outcome.tolist() == [OK, OK]
    assert first["finished_s"] < second["finished_s"]
    # The second was computed again with what it had generated by then.
    assert engine.steps["prefill"].sum() > 80
    assert not engine.steps["clean"].all()
    assert engine.itl_max_ms[1] > engine.itl_max_ms[0]


def test_the_batch_lane_gives_way_first() -> None:
    """An older batch request is preempted before a newer interactive one."""
    engine = an_engine([(0.0, 40, 40, 0, 1), (0.001, 40, 40, 0, 0)], blocks=8)

    engine.run_until(10.0)

    assert engine.jobs["preemptions"][0] > 0
    assert engine.jobs["preemptions"][1] == 0


def test_a_hopeless_request_is_shed() -> None:
    """One row: the second waits for the first and past its deadline; the third comes in time."""
    engine = an_engine([(0.0, 10, 30), (0.01, 10, 30), (0.25, 10, 30)], batch=1, shed_ttft_ms=100.0)

    engine.run_until(10.0)

    assert engine.outcome.tolist() == [OK, SHED, OK]
    assert math.isnan(engine.ttft_ms[1])
    assert engine.finished_s[1] == pytest.approx(0.11, abs=0.011)


def test_those_that_wait_have_their_turns_in_their_order() -> None:
    """A short prompt passes a long one that came before it, and waits for what has begun."""
    requests = a_list([(0.0, 500, 1), (0.001, 500, 1), (0.002, 20, 1)])
    ordered = replace(requests, turn_s=np.array([0.0, 1.0, 0.5]))

    engine = an_engine(ordered, batch=1)
    engine.run_until(5.0)

    assert engine.ended.tolist() == [0, 2, 1]


def test_who_waits_too_long_is_shed_wherever_it_waits() -> None:
    """Others may have passed it; those behind it stay."""
    rows = [(0.0, 10, 20), (0.001, 10, 1), (0.1, 10, 1), (0.101, 10, 1)]
    ordered = replace(a_list(rows), turn_s=np.array([0.0, 8.0, 0.5, 9.0]))

    engine = an_engine(ordered, batch=1, shed_ttft_ms=150.0)
    engine.run_until(0.15)
    assert engine.oldest_waiting_s == pytest.approx(engine.now - 0.001)
    engine.run_until(5.0)

    assert engine.outcome.tolist() == [OK, SHED, OK, OK]


def test_each_is_shed_by_its_own_patience() -> None:
    """Whatever others wait for, and as long as it has not begun."""
    rows = [(0.0, 10, 30), (0.001, 10, 1), (0.002, 10, 1)]
    patient = replace(a_list(rows), patience_s=np.array([0.01, 0.1, 9.0]))

    engine = an_engine(patient, batch=1)
    engine.run_until(5.0)

    assert engine.outcome.tolist() == [OK, SHED, OK]


def test_without_a_deadline_nothing_is_shed() -> None:
    """However long the line gets."""
    engine = an_engine([(0.0, 10, 30)] * 40, batch=1)

    engine.run_until(100.0)

    assert set(engine.outcome.tolist()) == {OK}


def test_a_request_that_could_never_fit_fails() -> None:
    """8,192 tokens is the model's length, 4 blocks are 64 tokens."""
    engine = an_engine([(0.0, 60, 10), (0.0, 60, 4)], blocks=4)

    engine.run_until(10.0)

    assert engine.outcome.tolist() == [FAILED, OK]


def test_prefix_hits_skip_prefill() -> None:
    """Only what is not cached is computed, until the cache is lost."""
    rows = [(0.0, 300, 2, 290), (1.0, 300, 2, 290)]
    engine = an_engine(rows, collapse_at_s=0.5)

    engine.run_until(10.0)

    assert engine.steps["prefill"].tolist() == [10, 0, 300, 0]
    assert engine.jobs["hits"].tolist() == [290, 0]
    assert engine.ttft_ms[0] < engine.ttft_ms[1]


def test_the_interactive_lane_gets_its_share() -> None:
    """Both lanes wait: about four of five prefill tokens go to the interactive one."""
    rows = [(0.0, 4000, 1, 0, lane) for lane in (0, 1)]
    engine = an_engine(rows, budget=100)

    engine.run_until(0.5)

    computed = engine.jobs["computed"]
    assert computed[0] / computed.sum() == pytest.approx(0.8, abs=0.08)


def test_short_prompts_do_not_wait_for_long_ones() -> None:
    """Prefill of several requests shares a step."""
    engine = an_engine([(0.0, 4000, 1), (0.0, 40, 1)], budget=200)

    engine.run_until(10.0)

    assert engine.ttft_ms[1] < 13.0
    assert engine.ttft_ms[0] > 200.0


def test_a_disturbance_lasts_as_long_as_it_says() -> None:
    """Steps within it take 1.5 times as long; a ramp gets there by and by."""
    hot = Disturbance(1.0, 2.0, 1.5)
    throttled = Disturbance(3.0, math.inf, 2.0, ramp_s=1.0)
    engine = an_engine([(0.0, 1, 1000)], disturbances=(hot, throttled))

    engine.run_until(6.0)

    began, wall = engine.steps["at"] - engine.steps["wall_ms"] / 1e3, engine.steps["wall_ms"]
    assert wall[began < 0.99] == pytest.approx(10.01)
    assert wall[(began > 1.01) & (began < 1.98)] == pytest.approx(15.015)
    assert wall[(began > 2.02) & (began < 2.98)] == pytest.approx(10.01)
    assert wall[(began > 3.49) & (began < 3.51)] == pytest.approx(15.0, abs=0.3)
    assert wall[began > 4.01] == pytest.approx(20.02)


def test_the_engines_own_pacer_keeps_the_step_target() -> None:
    """A 25-ms target: without a pacer many steps are over it, with one hardly any."""
    capacity = Capacity(256, 8192, 25_000, 16, 8192)
    limits = Limits(256, 8192, step_target_ms=25.0)
    shares = {}
    for name, pacer in (("none", None), ("own", make_pacer(H100_8B.model_info(), capacity))):
        engine = SimulatedEngine(
            H100_8B, a_crowd(50, 60), capacity=capacity, limits=limits, pacer=pacer, seed=1
        )
        engine.run_until(60.0)
        steps = engine.steps[engine.steps["at"] > 10.0]
        shares[name] = float(np.mean(steps["wall_ms"][steps["decode"] > 0] > 25.0))
        assert (steps["predicted_ms"] > 0).all() == (pacer is not None)

    assert shares["none"] > 0.1
    assert shares["own"] < 0.02


def test_records_outgrow_their_first_room() -> None:
    """Twenty thousand steps, and an hour of nothing."""
    engine = an_engine([(0.0, 1, 8000), (100.0, 1, 8000), (7200.0, 1, 8000)], hardware=H100_8B)

    engine.run_until(8000.0)

    assert len(engine.steps) == 24_000
    assert Counter(engine.outcome.tolist()) == {OK: 3}
    assert engine.steps["seq"].tolist() == list(range(1, 24_001))
    assert len(engine.gap_counts) == 1601


def test_an_unsorted_list_is_refused() -> None:
    """And so are lengths that differ or cannot be."""
    good = a_list([(0.0, 5, 5), (1.0, 5, 5)])
    with pytest.raises(ValueError, match="sorted"):
        type(good)(good.arrival_s[::-1], good.prompt, good.output, good.cached, good.lane)
    with pytest.raises(ValueError, match="equal lengths"):
        type(good)(good.arrival_s, good.prompt[:1], good.output, good.cached, good.lane)
    with pytest.raises(ValueError, match="less than prompt"):
        type(good)(good.arrival_s, good.prompt, good.output, good.prompt, good.lane)


def test_requests_that_come_one_by_one_are_served_as_a_list_is() -> None:
    """Even while others run, and beside a list that is offered between them."""
    crowd = a_crowd(20, 20)
    whole, one_by_one = (an_engine(rows, hardware=H100_8B) for rows in (crowd, a_list([])))
    rows = zip(crowd.arrival_s.tolist(), crowd.prompt.tolist(), crowd.output.tolist(), strict=True)

    for number, (arrival_s, prompt, output) in enumerate(rows):
        one_by_one.run_until(arrival_s)
        if number % 100 == 99:
            one_by_one.offer(a_list([(arrival_s, prompt, output)]))
        else:
            one_by_one.offer_one(arrival_s, prompt=prompt, output=output)
    for engine in (whole, one_by_one):
        engine.run_until(30.0)

    assert len(one_by_one.jobs) == len(crowd)
    assert whole.ttft_ms.tolist() == one_by_one.ttft_ms.tolist()
    assert whole.finished_s.tolist() == one_by_one.finished_s.tolist()


@pytest.mark.parametrize(
    ("arrival_s", "prompt", "cached"), [(0.5, 10, 0), (2.0, 0, 0), (2.0, 10, 10)],
    ids=["before the last", "no prompt", "all cached"],
)  # fmt: skip
def test_one_that_no_run_could_be_made_from_is_refused(
    arrival_s: float, prompt: int, cached: int
) -> None:
    engine = an_engine(a_list([(1.0, 10, 1)]))

    with pytest.raises(ValueError, match=r"must be at least 1|before the arrival"):
        engine.offer_one(arrival_s, prompt=prompt, output=1, cached=cached)
