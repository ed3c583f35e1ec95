"""The demo's report: one HTML file that needs nothing else."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from paceline_cli.demo.demo_run import DemoRun, Verdict, opening
from paceline_cli.demo.plots import distributions, over_time, save_over_time
from paceline_cli.demo.series import series_of
from paceline_cli.pages import rendered
from paceline_cli.plot_style import svg
from paceline_cli.sla_targets import targets
from paceline_cli.traffic.client_span import ClientSpan
from paceline_cli.traffic.record import percentile
from paceline_cli.up.screen import change_line


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of the summary: a quantity, its target, before, after."""

    name: str
    target: str
    before: str
    after: str
    before_misses: bool = False
    after_misses: bool = False


def write_report(
    run: DemoRun,
    verdict: Verdict,
    folder: Path,
    *,
    png: Path | None = None,
    series_json: Path | None = None,
) -> Path:
    """Write `report.html` into the folder, and return its path.

    The main plot goes to `png`, and what it draws to `series_json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    series = series_of(run)
    if png:
        png.parent.mkdir(parents=True, exist_ok=True)
        save_over_time(series, png)
    if series_json:
        series_json.parent.mkdir(parents=True, exist_ok=True)
        series_json.write_bytes(msgspec.json.format(msgspec.json.encode(series), indent=1) + b"\n")
    page = folder / "report.html"
    plots = svg(over_time(series)), svg(distributions(run))
    page.write_text(render(run, verdict, *plots), encoding="utf-8")
    return page


def render(run: DemoRun, verdict: Verdict, over_time_svg: str, distributions_svg: str) -> str:
    """The page's text."""
    return rendered(
        "demo/report.html.j2",
        run=run,
        opening=opening(run.sla, run.before().observed(run.sla)),
        verdict=verdict,
        rows=summary(run),
        before_s=run.border_at - run.start_at,
        judged_s=run.end_at - run.judged_from,
        changes=[change_line(change) for change in run.changes],
        over_time_svg=over_time_svg,
        distributions_svg=distributions_svg,
    )


def summary(run: DemoRun) -> list[SummaryRow]:
    """Targets first, then what else was measured."""
    before, after = run.before(), run.after()
    rows = [
        *_target_rows(run, before, after),
        *_median_rows(before, after),
        SummaryRow("requests offered", "", str(before.offered), str(after.offered)),
        SummaryRow(
            "refused, failed, timed out", "", str(len(before.misses)), str(len(after.misses))
        ),
        SummaryRow("output tokens/s", "", _rate(before), _rate(after)),
    ]
    if sidecar := run.last_observed():
        rows += [
            SummaryRow(
                f"{name} {sidecar.promised.name}, as the sidecar measured",
                _ms(target),
                "",
                _ms(value),
                after_misses=value is None or value > target,
            )
            for name, target, value in targets(run.sla, sidecar)
        ]
    return rows


def _target_rows(run: DemoRun, before: ClientSpan, after: ClientSpan) -> list[SummaryRow]:
    seen = before.observed(run.sla)
    pairs = zip(
        targets(run.sla, seen),
        targets(run.sla, after.observed(run.sla)),
        strict=True,
    )
    return [
        SummaryRow(
            f"{name} {seen.promised.name}",
            _ms(target),
            _ms(old),
            _ms(new),
            before_misses=old is None or old > target,
            after_misses=new is None or new > target,
        )
        for (name, target, old), (_, _, new) in pairs
    ]


def _median_rows(before: ClientSpan, after: ClientSpan) -> list[SummaryRow]:
    return [
        SummaryRow(f"{name} p50", "", _ms(percentile(old, 0.5)), _ms(percentile(new, 0.5)))
        for name, old, new in (
            ("TTFT", before.ttft_ms, after.ttft_ms),
            ("TPOT", before.tpot_ms, after.tpot_ms),
            ("ITL", before.itl_ms, after.itl_ms),
        )
    ]


def _rate(span: ClientSpan) -> str:
    return f"{span.output_tokens / span.seconds:.1f}"


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f} ms"
