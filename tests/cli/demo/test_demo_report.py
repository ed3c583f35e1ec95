"""The report is one file with plots, a summary that shows misses, and the decisions."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline_cli.demo.demo_run import DemoRun, TunerSample, judge
from paceline_cli.demo.plots import save_over_time
from paceline_cli.demo.report import summary, write_report
from paceline_cli.demo.series import DemoSeries
from paceline_cli.traffic.calibration import Speed
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.reports import a_change, observed
from paceline_tuner.service_spec import SLA

START, BORDER, JUDGED, END = 1000.0, 1030.0, 1060.0, 1120.0


def records(start: float, end: float, *, gap_s: float) -> Sequence[ClientRecord]:
    """One request a second, with gaps of one length."""
    return [
        ClientRecord(
            planned_at=at,
            sent_at=at,
            token_ats=tuple(at + 0.2 + gap_s * token for token in range(5)),
            finished_at=at + 0.2 + gap_s * 4,
            prompt_tokens=20,
            output_tokens=5,
            outcome="ok",
        )
        for at in (start + second for second in range(int(end - start)))
    ]


@pytest.fixture
def run() -> DemoRun:
    """Violated before, met after."""
    return DemoRun(
        name="quickstart",
        model="builtin://m",
        machine="2 cores of <this> & that",
        sla=SLA(ttft_p99_ms=1000.0, itl_p99_ms=400.0),
        rate_rps=1.0,
        speed=Speed(capacity_rps=2.5, decode_ms=60.0, prefill_ms=3.0),
        note="",
        cv=2.5,
        start_at=START,
        border_at=BORDER,
        judged_from=JUDGED,
        end_at=END,
        records=(*records(START, BORDER, gap_s=1.5), *records(BORDER, END, gap_s=0.1)),
        samples=tuple(
            TunerSample(START + 5 * tick, 32, 2048 if tick < 6 else 160, None, observed())
            for tick in range(24)
        ),
        changes=(a_change(reason="ITL binds: <160>"),),
    )


def test_the_report_needs_no_other_file(run: DemoRun, tmp_path: Path) -> None:
    """It is sent around by mail; nothing may be loaded from elsewhere."""
    verdict = judge(run.sla, run.after(), run.last_observed())

    page = write_report(run, verdict, tmp_path / "out", png=tmp_path / "plots/p99.png")

    text = page.read_text()
    assert text.count("<svg") == 2
    assert not re.search(r'(src|href)="(?!#)', text)
    assert verdict.sentence in text
    assert (tmp_path / "plots/p99.png").read_bytes().startswith(b"\x89PNG")


def test_a_kept_series_redraws_the_main_plot(run: DemoRun, tmp_path: Path) -> None:
    """The picture of a page can change its style without another run."""
    verdict = judge(run.sla, run.after(), run.last_observed())
    png, kept, again = (tmp_path / name for name in ("p99.png", "demo.json", "again.png"))

    write_report(run, verdict, tmp_path, png=png, series_json=kept)
    series = msgspec.json.decode(kept.read_bytes(), type=DemoSeries)
    save_over_time(series, again)

    assert again.read_bytes() == png.read_bytes()
    gaps, firsts = series.latencies
    assert (gaps.before_ms, gaps.after_ms) == pytest.approx((1500, 100))
    assert (firsts.name, firsts.target_ms) == ("time to first token", 1000.0)
    assert set(series.token_budget) == {2048, 160}


def test_what_was_measured_is_text_and_never_markup(run: DemoRun, tmp_path: Path) -> None:
    """Names and reasons come from outside."""
    verdict = judge(run.sla, run.after(), run.last_observed())

    text = write_report(run, verdict, tmp_path).read_text()

    assert "2 cores of &lt;this&gt; &amp; that" in text
    assert "ITL binds: &lt;160&gt;" in text


def test_the_summary_marks_what_misses_its_target(run: DemoRun) -> None:
    """Before and after, at the client and at the sidecar."""
    rows = {row.name: row for row in summary(run)}

    itl = rows["ITL p99"]
    assert (itl.target, itl.before, itl.after) == ("400 ms", "1,500 ms", "100 ms")
    assert (itl.before_misses, itl.after_misses) == (True, False)
    assert rows["ITL p99, as the sidecar measured"].after == "300 ms"
    assert rows["requests offered"].after == "60"
    assert "TPOT p99" not in rows  # no target is declared


@pytest.mark.parametrize(
    "without",
    [{"samples": ()}, {"changes": ()}, {"records": ()}],
    ids=["telemetry", "changes", "requests"],
)
def test_a_run_that_lacks_something_is_reported_all_the_same(
    run: DemoRun, tmp_path: Path, without: dict[str, Any]
) -> None:
    """A run that went wrong is the one whose report is read."""
    poor = replace(run, **without)
    verdict = judge(poor.sla, poor.after(), poor.last_observed())

    assert write_report(poor, verdict, tmp_path).stat().st_size > 10_000
