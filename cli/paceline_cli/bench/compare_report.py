"""The comparison's report: one HTML file that needs nothing else, and the same figures as JSON."""

from pathlib import Path

from paceline_cli.bench.cells import LEGEND, estimate_cell, quantile_cell
from paceline_cli.bench.compare_plots import goodput_over_load, p99_over_time
from paceline_cli.bench.comparison import ArmResult, Comparison
from paceline_cli.bench.document import as_json
from paceline_cli.bench.measures import NAMES
from paceline_cli.pages import rendered
from paceline_cli.plot_style import svg


def write_report(comparison: Comparison, folder: Path, *, png: Path | None = None) -> Path:
    """Write `compare.html` and `compare.json` into the folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    loads = goodput_over_load(comparison)
    times = p99_over_time(comparison)
    if png:
        png.parent.mkdir(parents=True, exist_ok=True)
        loads.savefig(png, dpi=140)
        times.savefig(png.with_stem(f"{png.stem}-time"), dpi=140)
    (folder / "compare.json").write_text(as_json(comparison), encoding="utf-8")
    page = folder / "compare.html"
    text = rendered(
        "bench/compare.html.j2",
        comparison=comparison,
        names=NAMES,
        rows=[(found, _cells(found)) for found in comparison.found],
        legend=LEGEND,
        loads_svg=svg(loads),
        times_svg=svg(times),
    )
    page.write_text(text, encoding="utf-8")
    return page


def _cells(found: ArmResult) -> list[str]:
    measured = found.measured
    return [
        str(measured.offered),
        str(measured.unanswered),
        estimate_cell(measured.attainment, 1, scale=100),
        estimate_cell(measured.goodput_tokens_per_s, 1),
        estimate_cell(measured.output_tokens_per_s, 1),
        f"{found.padding_share:.0%}",
        *[quantile_cell(latency.at(share)) for latency in measured.latencies
          for share in (0.5, 0.99)],
    ]  # fmt: skip
