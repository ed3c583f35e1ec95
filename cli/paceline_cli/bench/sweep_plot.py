"""The sweep's plot: latencies and throughput against each limit, with the tuner's own point."""

import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.bench.grid import Axis
from paceline_cli.bench.sweep_points import SHARES, Percentile, Point, Sweep, TunedPoint, label
from paceline_cli.plot_style import AFTER, FAINT, INK, plain_log_ticks, styled

CHOSEN: Final = "#D55E00"
_COLUMNS: Final[tuple[Axis, ...]] = ("batch_size", "token_budget")
_LATENCIES: Final = ("TTFT", "TPOT", "ITL", "E2E")
_COLORS: Final = ("#9BC9E6", "#4C9FD0", AFTER)
"""P50, P99, P99.9: the further out, the darker."""
_ROOM: Final = 1.6


def curves(sweep: Sweep) -> Figure:
    """One row a latency and one for throughput, one column a limit."""
    with styled():
        figure = Figure(figsize=(9, 12.5), layout="constrained")
        grid = figure.subplots(len(_LATENCIES) + 1, len(_COLUMNS), sharey="row", sharex="col")
        for column, axis_name in enumerate(_COLUMNS):
            points = sweep.along(axis_name)
            for row, name in enumerate(_LATENCIES):
                _latency_panel(grid[row][column], sweep, points, axis_name, name)
            _throughput_panel(grid[-1][column], sweep, points, axis_name)
            _limit_axis(grid[-1][column], points, axis_name, sweep.chosen)
        for row, name in enumerate(_LATENCIES):
            values = [ms for point in _all(sweep) for ms in _finite(point, name)]
            _log_range(grid[row][0], values)
            grid[row][0].set_title(f"{name} (ms)")
        grid[-1][0].set_title("Throughput (output tokens/s)")
        # The legend stands above the plots: inside it would cover points.
        figure.legend(
            handles=_legend(sweep), loc="outside upper left", ncols=3, frameon=False, fontsize=9
        )
    return figure


def _latency_panel(
    axis: Any, sweep: Sweep, points: Sequence[Point], axis_name: Axis, name: str
) -> None:
    for place, color in enumerate(_COLORS):
        read = [(p.setting.place, dict(p.measured.latencies())[name][place]) for p in points]
        _curve(axis, [(x, value) for x, value in read if value.ms is not None], color)
    if sweep.chosen is not None:
        x = _place(sweep.chosen, axis_name)
        values = dict(sweep.chosen.measured.latencies())[name]
        for value, color in zip(values, _COLORS, strict=True):
            if value.ms is not None and math.isfinite(value.ms):
                axis.plot(
                    [x], [value.ms], marker="*", markersize=11, color=color,
                    markeredgecolor=CHOSEN, zorder=5,
                )  # fmt: skip
    target = {
        "TTFT": sweep.sla.ttft_p99_ms,
        "TPOT": sweep.sla.tpot_p99_ms,
        "ITL": sweep.sla.itl_p99_ms,
        "E2E": sweep.sla.e2e_p99_ms,
    }.get(name)
    if target is not None:
        axis.axhline(target, color=INK, linestyle="--", linewidth=1)


def _curve(axis: Any, read: Sequence[tuple[int, Percentile]], color: str) -> None:
    if not read:
        return
    drawn = [(x, value.ms if math.isfinite(value.ms or 0.0) else math.nan) for x, value in read]
    axis.plot([x for x, _ in drawn], [y for _, y in drawn], color=color, linewidth=1.8)
    for x, value in read:
        if value.ms is not None and math.isfinite(value.ms):
            fill = "white" if value.is_max else color
            axis.plot([x], [value.ms], "o", markersize=5, color=color, markerfacecolor=fill)
        else:  # at the upper edge, as high as the plot goes
            axis.plot(
                [x], [0.97], "^", markersize=6, color=color, transform=axis.get_xaxis_transform()
            )


def _throughput_panel(axis: Any, sweep: Sweep, points: Sequence[Point], axis_name: Axis) -> None:
    axis.plot(
        [p.setting.place for p in points],
        [p.measured.tokens_per_s for p in points],
        "o-",
        color=INK,
        linewidth=1.8,
        markersize=5,
    )
    if sweep.chosen is not None:
        axis.plot(
            [_place(sweep.chosen, axis_name)], [sweep.chosen.measured.tokens_per_s],
            marker="*", markersize=11, color=INK, markeredgecolor=CHOSEN, zorder=5,
        )  # fmt: skip
    rates = [p.measured.tokens_per_s for p in _all(sweep)]
    axis.set_ylim(0, max([*rates, 1.0]) * 1.15)


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
    if sweep.chosen is not None:
        handles.append(
            Line2D([], [], color=AFTER, marker="*", markersize=11, markeredgecolor=CHOSEN,
                   linestyle="none", label="the tuner's own point"),
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


def _values(point: Point | TunedPoint) -> list[float]:
    return [
        value.ms
        for _, values in point.measured.latencies()
        for value in values
        if value.ms is not None
    ]


def _finite(point: Point | TunedPoint, name: str) -> list[float]:
    values = dict(point.measured.latencies())[name]
    return [value.ms for value in values if value.ms is not None and math.isfinite(value.ms)]


def _place(chosen: TunedPoint, axis: Axis) -> int:
    return chosen.batch_size if axis == "batch_size" else chosen.token_budget
