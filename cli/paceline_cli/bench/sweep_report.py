"""The sweep's report: one HTML file that needs nothing else, and the same figures as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from paceline_cli.bench.cells import LEGEND, estimate_cell, lagged, quantile_cell
from paceline_cli.bench.document import as_json
from paceline_cli.bench.grid import Axis, Setting
from paceline_cli.bench.measures import NAMES, Measures, label
from paceline_cli.bench.sweep_plot import SHARES, curves
from paceline_cli.bench.sweep_points import Point, Sweep, TunedPoint
from paceline_cli.pages import rendered
from paceline_cli.plot_style import svg

KNEE: Final = (
    "The knee of a limit is the smallest that brings 95 % of the best goodput along it (of all"
    " output tokens, where no target is declared)."
)
_HEADS: Final = ("batch", "tokens", "attainment %", "goodput tok/s", "all tok/s")
_LEAST_WIDTH: Final = 150
_SETTLED: Final = frozenset({"Tracking", "Unattainable"})
"""Phases that more time under the same load does not change."""
_TITLES: tuple[tuple[str, Axis], ...] = (
    ("Max batch size", "batch_size"),
    ("Token budget", "token_budget"),
)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One line of the table."""

    batch_size: int
    token_budget: int
    offered: int
    unanswered: int
    attainment: str
    goodput: str
    tokens_per_s: str
    cells: tuple[str, ...]
    """The quantiles of SHARES of each latency; a maximum is marked `max`."""
    mark: str = ""
    """`knee`, or empty."""
    client_lagged: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What a sweep found on one machine."""

    device: str
    traffic: str
    knee: str
    chosen: str
    attainment: str
    goodput: str
    tokens_per_s: str
    cells: tuple[str, ...]
    """The p99 of each latency at the tuner's own point."""


def write_report(
    sweep: Sweep, folder: Path, *, png: Path | None = None, others: Sequence[Sweep] = ()
) -> Path:
    """Write `sweep.html` and `sweep.json` into the folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = curves(sweep)
    if png:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, dpi=140)
    (folder / "sweep.json").write_text(as_json(sweep), encoding="utf-8")
    page = folder / "sweep.html"
    page.write_text(render(sweep, svg(figure), others), encoding="utf-8")
    return page


def render(sweep: Sweep, curves_svg: str, others: Sequence[Sweep] = ()) -> str:
    """The page's text."""
    return rendered(
        "bench/sweep.html.j2",
        sweep=sweep,
        tables=[(title, _rows(sweep, axis)) for title, axis in _TITLES if sweep.along(axis)],
        chosen=(
            _row(sweep.chosen, sweep.chosen.measured, client_lagged=sweep.chosen.client_lagged)
            if sweep.chosen
            else None
        ),
        settling=settling(sweep.chosen),
        names=NAMES,
        shares=[label(share) for share in SHARES],
        devices=[device_row(each) for each in (sweep, *others)] if others else [],
        legend=LEGEND,
        knee=KNEE,
        curves_svg=curves_svg,
    )


def show(sweep: Sweep, console: Console) -> None:
    """Print the points with their knees and the tuner's own, and what the marks say."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table(sweep))
    told = [KNEE]
    if sweep.chosen is not None:
        told += ["★ is the tuner's own point.", settling(sweep.chosen)]
    for text in (*told, LEGEND):
        if text:
            console.print(text, soft_wrap=True, markup=False, highlight=False)


def table(sweep: Sweep) -> Table:
    """The p99s and the goodput of every point on a terminal."""
    made = Table(title="Latency in ms", title_justify="left")
    made.add_column("", no_wrap=True)
    for head in (*_HEADS, *(f"{name} p99" for name in NAMES)):
        made.add_column(head, justify="right", no_wrap=True)
    for _, axis in _TITLES:
        knee = sweep.knee(axis)
        for point in sweep.along(axis):
            mark = "knee" if point is knee else ""
            made.add_row(*_shown(mark, point))
        made.add_section()
    if sweep.chosen is not None:
        made.add_row(*_shown("★", sweep.chosen))
    return made


def _shown(mark: str, point: Point | TunedPoint) -> list[str]:
    limits = point.setting if isinstance(point, Point) else point
    measured = point.measured
    cells = (
        f"{limits.batch_size}",
        f"{limits.token_budget}",
        estimate_cell(measured.attainment, 1, scale=100),
        estimate_cell(measured.goodput_tokens_per_s, 1),
        estimate_cell(measured.output_tokens_per_s, 1),
        *(quantile_cell(each.at(0.99)) for each in measured.latencies),
    )
    first = f"{mark}{lagged(point.client_lagged)}".removeprefix(", ").replace(", ", "\n")
    return [first, *(cell.replace(" (", "\n(") for cell in cells)]


def settling(chosen: TunedPoint | None) -> str:
    """Say where the tuner was still settling at its end, and what to do about it."""
    if chosen is None or chosen.phase in _SETTLED:
        return ""
    return (
        f"The tuner had not settled at the end (phase {chosen.phase}):"
        " a longer --settle gives it more time."
    )


def device_row(sweep: Sweep) -> DeviceRow:
    """Sum a sweep up at the tuner's own point, or at the knee where there is none."""
    knee = sweep.knee("batch_size")
    at = sweep.chosen or knee
    measured = at.measured if at is not None else None
    return DeviceRow(
        device=sweep.device if sweep.device not in {"", "cpu"} else sweep.machine,
        traffic=sweep.traffic,
        knee=f"batch {knee.setting.batch_size}" if knee is not None else "-",
        chosen=(
            f"batch {sweep.chosen.batch_size}, tokens {sweep.chosen.token_budget}"
            if sweep.chosen is not None
            else "-"
        ),
        attainment=estimate_cell(measured.attainment, 1, scale=100) if measured else "-",
        goodput=estimate_cell(measured.goodput_tokens_per_s, 1) if measured else "-",
        tokens_per_s=estimate_cell(measured.output_tokens_per_s, 1) if measured else "-",
        cells=tuple(quantile_cell(each.at(0.99)) for each in measured.latencies)
        if measured
        else ("-",) * len(NAMES),
    )


def _rows(sweep: Sweep, axis: Axis) -> list[SweepRow]:
    knee = sweep.knee(axis)
    return [
        _row(
            point.setting,
            point.measured,
            mark="knee" if point is knee else "",
            client_lagged=point.client_lagged,
        )
        for point in sweep.along(axis)
    ]


def _row(
    limits: Setting | TunedPoint, measured: Measures, *, mark: str = "", client_lagged: bool = False
) -> SweepRow:
    return SweepRow(
        batch_size=limits.batch_size,
        token_budget=limits.token_budget,
        offered=measured.offered,
        unanswered=measured.unanswered,
        attainment=estimate_cell(measured.attainment, 1, scale=100),
        goodput=estimate_cell(measured.goodput_tokens_per_s, 1),
        tokens_per_s=estimate_cell(measured.output_tokens_per_s, 1),
        cells=tuple(
            quantile_cell(latency.at(share)) for latency in measured.latencies for share in SHARES
        ),
        mark=mark,
        client_lagged=client_lagged,
    )
