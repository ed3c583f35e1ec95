"""A run is judged by its targets and by an earlier run, beyond the noise of both."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_cli.__main__ import main
from paceline_cli.bench.check import undecided, worse_than
from paceline_cli.bench.document import RUN_SCHEMA, RunResult, as_json, read_run
from paceline_cli.bench.measures import Measures, measure
from paceline_cli.traffic.client_health import ClientHealth
from paceline_cli.traffic.record import ClientRecord, Outcome
from paceline_tuner.service_spec import SLA

TARGET = SLA(ttft_p99_ms=500.0)


def a_run(ttft_ms: list[float], *, traffic: str = "as usual", sla: SLA = TARGET) -> RunResult:
    """One request a second."""
    records = [
        ClientRecord(float(at), float(at), tuple(at + ms / 1e3 + i / 100 for i in range(3)),
                     at + ms / 1e3 + 0.02, 5, 3, "ok")
        for at, ms in enumerate(ttft_ms)
    ]  # fmt: skip
    return RunResult(
        schema=RUN_SCHEMA,
        service="q",
        model="m",
        client_machine="2 cores",
        traffic=traffic,
        seed=1,
        warmup="none",
        sla=sla,
        measures=measure(records, 0.0, max(1.0, float(len(records))), sla),
        client=ClientHealth(1.0, 1.0, 1.0, 10.0),
    )


def file_of(folder: Path, name: str, run: RunResult) -> str:
    path = folder / name
    path.write_text(as_json(run))
    return str(path)


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("bench", "check", *arguments))


def scattered(num_late: int) -> list[float]:
    """400 first tokens, the late ones not beside each other."""
    every = 400 // num_late
    return [900.0 if at % every == every // 2 else 100.0 for at in range(400)]


SLOW, NEAR, FAST = [900.0] * 400, [400.0] * 395 + [501.0] * 5, [100.0] * 400


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Infinity among it."""
    run = a_run([100.0, 200.0])
    endless = replace(run.measures, ttft=replace(run.measures.ttft, max_ms=float("inf")))
    run = replace(run, measures=endless)

    assert read_run(Path(file_of(tmp_path, "run.json", run))) == run


@pytest.mark.parametrize(
    ("values", "status"), [(SLOW, 1), (NEAR, 0), (FAST, 0)], ids=["slow", "near", "fast"]
)
def test_a_target_is_missed_beyond_noise(tmp_path: Path, values: list[float], status: int) -> None:
    """A p99 whose interval holds the target is no miss, and it is said that it is none."""
    result = check(file_of(tmp_path, "run.json", a_run(values)))

    assert result.exit_code == status, result.output
    assert ("TTFT p99 is 900 ms, at least 900 ms; the target is 500 ms." in result.output) == (
        status == 1
    )
    assert ("within the noise" in result.output) == (values is NEAR)


def test_a_target_of_the_command_goes_before_the_runs(tmp_path: Path) -> None:
    """A stricter one."""
    path = file_of(tmp_path, "run.json", a_run(FAST))

    assert check(path, "--ttft", "50ms").exit_code == 1
    assert check(path, "--itl", "1ms").exit_code == 1


def test_a_baseline_is_missed_beyond_noise(tmp_path: Path) -> None:
    """One sentence for each figure that became worse; better ones are fine."""
    fast, slow = (
        file_of(tmp_path, name, a_run(values, sla=SLA()))
        for name, values in (("fast", FAST), ("slow", SLOW))
    )

    worse = check(slow, "--baseline", fast)

    assert worse.exit_code == 1
    assert "TTFT p50 is 900 (900-900) ms; the baseline's was 100 (100-100) ms." in worse.output
    assert check(fast, "--baseline", slow).exit_code == 0
    assert check(fast, "--baseline", fast).exit_code == 0


@given(values=st.lists(st.floats(10, 1000), min_size=1, max_size=50))
@settings(deadline=None, max_examples=20)
def test_no_run_is_worse_than_itself(values: list[float]) -> None:
    """Whatever it measured."""
    run = a_run(values)

    assert worse_than(run.measures, run.measures) == []


def test_a_few_late_requests_are_within_the_noise_of_none() -> None:
    """4 of 400 late are 97.5 to 99.75 %, none of 400 is 99 to 100 %: no figure may tell them apart.

    A bootstrap of a baseline without a miss draws none, so its goodput once had no width.
    """
    none, few = a_run(FAST), a_run(scattered(4))

    assert worse_than(few.measures, none.measures) == []


def test_a_few_refused_requests_are_within_the_noise_of_none() -> None:
    """Answers of equal lengths leave the rate of tokens no spread but that of who is answered."""
    none, few = (
        measure(
            [
                ClientRecord(at, at, (at + 0.1, at + 0.2), at + 0.2, 5, 2, "ok")
                if at % 100 != 50 or not refused
                else ClientRecord(at, at, (), at, 5, 0, "refused")
                for at in map(float, range(400))
            ],
            0.0,
            400.0,
        )
        for refused in (False, True)
    )

    assert worse_than(few, none) == []


def test_many_late_requests_are_still_worse_than_none() -> None:
    """In attainment and both goodputs; the interval that hides 4 shows 40."""
    none, many = a_run(FAST), a_run(scattered(40))

    figures = [sentence.split(" is ")[0] for sentence in worse_than(many.measures, none.measures)]
    assert figures[:3] == ["attainment", "goodput", "goodput"]


@pytest.mark.parametrize(
    ("late", "refused"), [(0.0, 0.0), (0.01, 0.02), (0.3, 0.0)], ids=["good", "rarely", "often"]
)
def test_runs_of_one_process_are_seldom_worse(late: float, refused: float) -> None:
    """In one of twenty at most, whatever the share; all answers are of one length."""
    drawn = random.Random(11)

    def one_run() -> Measures:
        """One token each, in which a gap would only cost time."""
        records = []
        for at in map(float, range(100)):
            ms = 900.0 if drawn.random() < late else drawn.uniform(100, 300)
            token_ats = () if drawn.random() < refused else (at + ms / 1e3,)
            end = token_ats[0] if token_ats else at
            outcome: Outcome = "ok" if token_ats else "refused"
            records.append(ClientRecord(at, at, token_ats, end, 5, len(token_ats), outcome))
        return measure(records, 0.0, 100.0, TARGET)

    num_worse = sum(bool(worse_than(one_run(), one_run())) for _ in range(40))

    assert num_worse <= 2


def test_too_few_requests_decide_nothing_good() -> None:
    """Ten fast answers do not show a p99."""
    (sentence,) = undecided(a_run([100.0] * 10).measures, SLA(ttft_p99_ms=500.0))

    assert "within the noise of 10 values" in sentence


def test_what_cannot_be_judged_is_exit_status_2(tmp_path: Path) -> None:
    """A user's CI tells a broken check from a miss."""
    good = file_of(tmp_path, "good", a_run(FAST))
    (tmp_path / "other").write_text('{"schema": "something"}')
    (tmp_path / "broken").write_text("{")
    (tmp_path / "partly").write_text(f'{{"schema": "{RUN_SCHEMA}"}}')

    for arguments, words in (
        ((str(tmp_path / "nowhere"),), "no such file"),
        ((str(tmp_path / "other"),), "schema must be"),
        ((str(tmp_path / "broken"),), "cannot be read as JSON"),
        ((str(tmp_path / "partly"),), "service"),
        ((good, "--baseline", file_of(tmp_path, "b", a_run(FAST, traffic="more"))), "another"),
        ((file_of(tmp_path, "c", a_run([])),), "offered no request"),
        ((file_of(tmp_path, "d", a_run(FAST, sla=SLA())),), "nothing to judge by"),
        ((good, "-f", "nowhere.yaml"), "nowhere.yaml"),
        ((good, "--ttft", "soon"), "a duration is"),
    ):
        result = check(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert words in result.output.replace("\n", " ")
