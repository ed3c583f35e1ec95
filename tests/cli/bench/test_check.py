"""A run is judged by its targets and by an earlier run, beyond the noise of both."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_cli.__main__ import main
from paceline_cli.bench.check import undecided, worse_than
from paceline_cli.bench.document import RUN_SCHEMA, RunResult, as_json, read_run
from paceline_cli.bench.measures import measure
from paceline_cli.traffic.client_health import ClientHealth
from paceline_cli.traffic.record import ClientRecord
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
