"""The table and the plain line show targets, measurements, limits and the last change."""

import io

import pytest
from rich.console import Console

from paceline_cli.up.screen import LiveView, change_line, line, screen
from paceline_testing.reports import a_change, a_pod_report, a_report, observed
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, TuningSpec


def a_view(report: ServiceReport | None, **changes: object) -> LiveView:
    fields: dict[str, object] = {
        "name": "quickstart",
        "model": "builtin://m",
        "url": "http://127.0.0.1:8000",
        "spec": TuningSpec(sla=SLA(ttft_p99_ms=8000.0, itl_p99_ms=400.0)),
        "state": "serving",
        "report": report,
    }
    return LiveView(**(fields | changes))  # type: ignore[arg-type] # a builder takes any field


def drawn(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(screen(view))
    return console.export_text()


def test_the_table_shows_what_is_promised_measured_and_decided() -> None:
    """One look answers: does it hold, by what limits, and why these."""
    table = drawn(a_view(a_report(), events=("12:00:00  ready",)))

    for text in (
        "http://127.0.0.1:8000/v1",
        "serving",
        "400 ms",
        "300 ms",
        "✓ met",
        "99.5%",
        "160",
        "Tracking",
        "SLA:itl",
        "Meeting",
        "tokens 2048 → 160: ITL binds",
        "12:00:00  ready",
    ):
        assert text in table


def test_a_missed_target_is_told_in_words() -> None:
    """Colour alone is lost on paper and on some eyes."""
    pod = a_pod_report(observed=observed(itl_p99_ms=1200.0), verdict="Violating")

    table = drawn(a_view(a_report(pods=(pod,))))

    assert "✗ 3.0 times the target" in table
    assert "Violating" in table


@pytest.mark.parametrize("report", [None, a_report(pods=())], ids=["no report", "no pod"])
def test_nothing_measured_yet_is_a_dash(report: ServiceReport | None) -> None:
    """While the model loads there is a table already."""
    view = a_view(report, state="loading the model")

    assert "loading the model" in drawn(view)
    assert line(view) == "quickstart: loading the model"


def test_what_the_client_measures_stands_beside_it() -> None:
    """The demo shows both ends of the wire."""
    table = drawn(a_view(a_report(), client=observed(itl_p99_ms=333.0)))

    assert "client, last 20 s" in table
    assert "333 ms" in table


def test_a_log_gets_one_line_for_a_tick() -> None:
    """Declared targets only, with the limits and their cause."""
    assert line(a_view(a_report())) == (
        "quickstart: Meeting: TTFT p99 900 ms of 8,000 ms, ITL p99 300 ms of 400 ms;"
        " batch 32, tokens 160, step 320 ms; 4 running, 1 waiting; Tracking (SLA:itl)"
    )


def test_a_change_names_only_what_moved() -> None:
    """Batch stayed."""
    assert change_line(a_change()).endswith("  tokens 2048 → 160: ITL binds")


def test_a_loading_engine_is_a_bar() -> None:
    """It shows the stage, and how much of it is done."""
    table = drawn(a_view(None, state="not ready: the engine is loading: loading weights 43%"))

    assert "loading weights" in table
    assert "43%" in table
    assert "━" in table
    assert "loading the model" in table
    assert "43%" not in drawn(a_view(None, state="serving"))
