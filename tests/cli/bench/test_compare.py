"""The comparison of schedulings: figures that are read honestly, on one page."""

import json
from pathlib import Path
from typing import get_args

from click.testing import CliRunner
from rich.console import Console

from paceline_cli.__main__ import main
from paceline_cli.bench.compare import table
from paceline_cli.bench.compare_report import Comparison, SchedulingResult, write_report
from paceline_cli.bench.sweep_points import measure
from paceline_cli.place import SCHEDULINGS, Scheduling
from paceline_cli.traffic.record import ClientRecord
from paceline_engine.scheduling import Scheduling as EngineScheduling


def a_record(at: float, *, is_ok: bool = True) -> ClientRecord:
    return ClientRecord(
        planned_at=at,
        sent_at=at,
        token_ats=tuple(at + 0.2 + 0.1 * i for i in range(5)) if is_ok else (),
        finished_at=at + 0.6,
        prompt_tokens=20,
        output_tokens=5 if is_ok else 0,
        outcome="ok" if is_ok else "timeout",
    )


def a_trial(scheduling: Scheduling, padding: int) -> SchedulingResult:
    is_slow = scheduling == "static"
    records = [a_record(float(n), is_ok=n > 1 or not is_slow) for n in range(20)]
    return SchedulingResult(scheduling, measure(records, 0.0, 20.0), padding, 300)


def a_comparison() -> Comparison:
    return Comparison(
        model="builtin://<m>",
        machine="2 cores",
        rate_rps=1.5,
        cv=2.5,
        seconds=20.0,
        found=(a_trial("continuous", 0), a_trial("dynamic", 100), a_trial("static", 300)),
    )


def test_the_page_and_the_figures_name_every_scheduling(tmp_path: Path) -> None:
    """One row each; text from outside is escaped; a lost request is an infinite wait."""
    page = write_report(a_comparison(), tmp_path)
    text = page.read_text()
    figures = json.loads((tmp_path / "compare.json").read_text())

    assert all(f"<td>{name}</td>" in text for name in SCHEDULINGS)
    assert "builtin://&lt;m&gt;" in text
    assert figures["schedulings"]["static"]["ttft_ms"]["p99"]["ms"] == "inf"
    assert figures["schedulings"]["continuous"]["missed"] == 0
    assert "no answer" in text


def test_padding_is_a_share_of_all_that_was_computed() -> None:
    """300 of 600 tokens are half."""
    shares = [found.padding_share for found in a_comparison().found]

    assert shares == [0.0, 0.25, 0.5]


def test_the_table_shows_throughput_padding_and_every_percentile() -> None:
    """Never one number."""
    text = Console(width=120)
    with text.capture() as captured:
        text.print(table(a_comparison()))

    shown = captured.get()
    for name in ("tokens/s", "missed", "padding", "TTFT P50", "TPOT P99", "E2E P99.9"):
        assert name in shown
    assert "25%" in shown


def test_the_schedulings_are_the_engines() -> None:
    """A name that the engine does not know would keep it from starting."""
    assert set(SCHEDULINGS) == set(get_args(EngineScheduling)) == set(get_args(Scheduling))


def test_a_bad_manifest_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """With the name of the file."""
    missing = tmp_path / "none.yaml"

    result = CliRunner().invoke(main, ["bench", "compare", "-f", str(missing)])

    assert result.exit_code != 0
    assert "none.yaml" in result.output
