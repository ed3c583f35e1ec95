"""The sweep's plot: latencies and throughput against each limit, with the tuner's own point."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.bench.grid import Axis
from paceline_cli.bench.intervals import Estimate
from paceline_cli.bench.measures import NAMES, Measures, Quantile, label
from paceline_cli.bench.run_report import target_ms
from paceline_cli.bench.sweep_points import Point, Sweep, TunedPoint, worth
from paceline_cli.plot_style import AFTER, FAINT, INK, plain_log_ticks, styled

CHOSEN: Final = "#D55E00"
_COLUMNS: Final[tuple[Axis, ...]] = ("batch_size", "token_budget")
SHARES: Final = (0.5, 0.99, 0.999)
_COLORS: Final = ("#9BC9E6", "#4C9FD0", AFTER)
"""For p50, p99, p99.9: the further out, the darker."""
_ROOM: Final = 1.6


def curves(sweep: Sweep) -> Figure:
    """One row a latency and one for throughput, one column a limit that was swept."""
    columns: Sequence[Axis] = [each for each in _COLUMNS if sweep.along(each)] or _COLUMNS
    with styled():
        figure = Figure(figsize=(9, 12.5), layout="constrained")
        grid = figure.subplots(
            len(NAMES) + 1, len(columns), sharey="row", sharex="col", squeeze=False
        )
        for column, axis_name in enumerate(columns):
            points = sweep.along(axis_name)
            for row, name in enumerate(NAMES):
                _latency_panel(grid[row][column], sweep, points, axis_name, name)
            _throughput_panel(grid[-1][column], sweep, points, axis_name)
            _limit_axis(grid[-1][column], points, axis_name, sweep.chosen)
        for row, name in enumerate(NAMES):
            values = [ms for point in _all(sweep) for ms in _finite(point, name)]
            _log_range(grid[row][0], values)
            grid[row][0].set_title(f"{name} (ms)")
        grid[-1][0].set_title("Output tokens/s: all, and within the targets")
        # The legend stands above the plots: inside it would cover points.
        figure.legend(
            handles=_legend(sweep), loc="outside upper left", ncols=3, frameon=False, fontsize=9
        )
    return figure


def _latency_panel(
    axis: Any, sweep: Sweep, points: Sequence[Point], axis_name: Axis, name: str
) -> None:
    for place, color in enumerate(_COLORS):
        read = [(p.setting.place, _quantiles(p.measured, name)[place]) for p in points]
        _curve(axis, [(x, value) for x, value in read if value.ms.value is not None], color)
    knee = sweep.knee(axis_name)
    if knee is not None:
        axis.axvline(knee.setting.place, color=FAINT, linestyle=":", linewidth=1.2)
    if sweep.chosen is not None:
        x = _place(sweep.chosen, axis_name)
        values = _quantiles(sweep.chosen.measured, name)
        for value, color in zip(values, _COLORS, strict=True):
            if value.ms.value is not None and math.isfinite(value.ms.value):
                axis.plot(
                    [x], [value.ms.value], marker="*", markersize=11, color=color,
                    markeredgecolor=CHOSEN, zorder=5,
                )  # fmt: skip
    target = target_ms(sweep.sla, name)
    if target is not None:
        axis.axhline(target, color=INK, linestyle="--", linewidth=1)


def _curve(axis: Any, read: Sequence[tuple[int, Quantile]], color: str) -> None:
    if not read:
        return
    drawn = [
        (x, ms if math.isfinite(ms := value.ms.value or 0.0) else math.nan) for x, value in read
    ]
    axis.plot([x for x, _ in drawn], [y for _, y in drawn], color=color, linewidth=1.8)
    for (x, value), (_, y) in zip(read, drawn, strict=True):
        if math.isnan(y):  # at the upper edge, as high as the plot goes
            axis.plot(
                [x], [0.97], "^", markersize=6, color=color, transform=axis.get_xaxis_transform()
            )
            continue
        fill = "white" if value.is_max else color
        axis.plot([x], [y], "o", markersize=5, color=color, markerfacecolor=fill)
        low, high = value.ms.low, value.ms.high
        if not value.is_max and low is not None and high is not None and math.isfinite(high):
            axis.vlines(x, low, high, color=color, linewidth=1, alpha=0.7)


def _throughput_panel(axis: Any, sweep: Sweep, points: Sequence[Point], axis_name: Axis) -> None:
    has_targets = any(p.measured.goodput_rps.value is not None for p in points)
    lines: list[tuple[str, Callable[[Measures], Estimate]]] = [
        (INK, lambda measured: measured.output_tokens_per_s)
    ]
    if has_targets:
        lines.append((AFTER, worth))
    for color, read in lines:
        axis.plot(
            [p.setting.place for p in points],
            [read(p.measured).value or 0.0 for p in points],
            "o-",
            color=color,
            linewidth=1.8,
            markersize=5,
        )
        for point in points:
            low, high = (each := read(point.measured)).low, each.high
            if low is not None and high is not None:
                axis.vlines(point.setting.place, low, high, color=color, linewidth=1, alpha=0.7)
        if sweep.chosen is not None:
            axis.plot(
                [_place(sweep.chosen, axis_name)], [read(sweep.chosen.measured).value or 0.0],
                marker="*", markersize=11, color=color, markeredgecolor=CHOSEN, zorder=5,
            )  # fmt: skip
    rates = [
        top or 0.0
        for p in _all(sweep)
        for top in (p.measured.output_tokens_per_s.high, p.measured.output_tokens_per_s.value)
    ]
    axis.set_ylim(0, max([*rates, 1.0]) * 1.15)
    knee = sweep.knee(axis_name)
    if knee is not None:
        axis.axvline(knee.setting.place, color=FAINT, linestyle=":", linewidth=1.2)
        axis.annotate(
            "knee", (knee.setting.place, 0.03), xycoords=axis.get_xaxis_transform(),
            xytext=(4, 0), textcoords="offset points", color=FAINT, fontsize=9,
        )  # fmt: skip


def _limit_axis(
    axis: Any, points: Sequence[Point], axis_name: Axis, chosen: TunedPoint | None
) -> None:
    places = [p.setting.place for p in points]
    if not places and chosen is None:
        return
    around = [*places, _place(chosen, axis_name)] if chosen else places
    axis.set_xlim(min(around) / 1.3, max(around) * 1.3)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_xlabel(_title(points, axis_name))


def _title(points: Sequence[Point], axis_name: Axis) -> str:
    """The limit that moves, and the other as it was held."""
    held = points[-1].setting if points else None
    if axis_name == "batch_size":
        return "max batch size" + (f", token budget {held.token_budget:,}" if held else "")
    return "token budget" + (f", max batch size {held.batch_size}" if held else "")


def _log_range(axis: Any, values: Sequence[float]) -> None:
    positive = [value for value in values if value > 0]
    if not positive:
        return
    # Limits first: a change of scale would try to fit them to what may be one value.
    axis.set_ylim(min(positive) / _ROOM, max(positive) * _ROOM)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis, positive)


def _legend(sweep: Sweep) -> list[Line2D]:
    handles = [
        Line2D([], [], color=color, marker="o", label=label(share))
        for share, color in zip(SHARES, _COLORS, strict=True)
    ]
    handles.append(
        Line2D([], [], color=FAINT, marker="o", markerfacecolor="white", linestyle="none",
               label="too few values for that rank: their maximum"),
    )  # fmt: skip
    handles.append(Line2D([], [], color=FAINT, linestyle=":", label="knee: more brings nothing"))
    if any(point.measured.goodput_rps.value is not None for point in sweep.points):
        handles += [
            Line2D([], [], color=INK, marker="o", label="all output tokens/s"),
            Line2D([], [], color=AFTER, marker="o", label="goodput, tokens/s"),
        ]
    if sweep.chosen is not None:
        handles.append(
            Line2D([], [], color=AFTER, marker="*", markersize=11, markeredgecolor=CHOSEN,
                   linestyle="none", label="the tuner's own point, same requests"),
        )  # fmt: skip
    sla = sweep.sla
    if (sla.ttft_p99_ms or sla.tpot_p99_ms or sla.itl_p99_ms or sla.e2e_p99_ms) is not None:
        handles.append(Line2D([], [], color=INK, linestyle="--", label="declared p99 target"))
    if any(value == math.inf for point in _all(sweep) for value in _values(point)):
        handles.append(
            Line2D([], [], color=FAINT, marker="^", linestyle="none", label="no answer in time")
        )
    return handles


def _all(sweep: Sweep) -> list[Point | TunedPoint]:
    return [*sweep.points, *([sweep.chosen] if sweep.chosen is not None else [])]


def _quantiles(measured: Measures, name: str) -> list[Quantile]:
    latency = measured.latencies[NAMES.index(name)]
    return [latency.at(share) for share in SHARES]


def _values(point: Point | TunedPoint) -> list[float]:
    found = [q.ms.value for name in NAMES for q in _quantiles(point.measured, name)]
    return [ms for ms in found if ms is not None]


def _finite(point: Point | TunedPoint, name: str) -> list[float]:
    found = [q.ms.value for q in _quantiles(point.measured, name)]
    return [ms for ms in found if ms is not None and math.isfinite(ms)]


def _place(chosen: TunedPoint, axis: Axis) -> int:
    return chosen.batch_size if axis == "batch_size" else chosen.token_budget
