"""Pods that are ready over the time of the ramp, by what the autoscaler reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autoscale.arms import ORACLE, OURS, TARGET, UTILIZATION
from autoscale.horizontal import SYNC_S
from autoscale.ramp import Ramp
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled

_WAITING: Final = "5 waiting requests a pod"
_ARMS: Final = {
    ORACLE: ("oracle, which knows the ramp", INK, "-", 1.5),
    OURS: ("recommendedReplicas", AFTER, "-", 2.5),
    UTILIZATION: ("λ/λ*: load over capacity", "#56B4E9", "-", 1.5),
    "CPU at 80 %": ("CPU at 80 %", "#009E73", "-", 1.5),
    _WAITING: (_WAITING, BEFORE, "-", 1.5),
}
_COLD_S: Final = 120.0
_IN_FLIGHT: Final = "requests in flight, by a load test"
_LINES: Final = {**_ARMS, _IN_FLIGHT: ("requests in flight", "#CC79A7", "--", 1.5)}
"""The simulated ramps draw `_ARMS` alone."""
_SHIFT: Final = 0.005
"""The offset between the lines of two arms, as a share of the axis: equal ones stay visible."""


def draw_ramps(raw: Mapping[str, Any], drawn: Mapping[str, Ramp], path: Path) -> None:
    """Draw one panel for each ramp, the pods that the load needs below them."""
    capacity_rps = raw["pod"]["capacity_rps"]
    with styled():
        figure = Figure(figsize=(11, 5.0), layout="constrained")
        _say(figure, "Waiting requests make pods come and go; the recommendation follows the load"
             f" (simulated, a pod starts in {_COLD_S:.0f} s)")  # fmt: skip
        panels = figure.subplots(1, len(drawn))
        for axes, (name, ramp) in zip(panels, drawn.items(), strict=True):
            rows = {
                row["arm"]: row["ready"]
                for row in raw["rows"]
                if (row["ramp"], row["cold_s"], row["checks"]) == (name, _COLD_S, False)
                and row["arm"] in _ARMS
            }
            shift = _SHIFT * max(map(max, rows.values()))
            for place, (arm, ready) in enumerate(rows.items()):
                minutes = [SYNC_S * (n + 1) / 60 for n in range(len(ready))]
                _draw_arm(axes, arm, minutes, ready, up=place * shift)
            _draw_needed(axes, ramp, capacity_rps)
            axes.set_title(f"From {name}")
        _finish(figure, panels[0], path)


def draw_real(raw: Mapping[str, Any], path: Path) -> None:
    """Draw the pods that were ready on the real ramp, the pods that the load needs below them."""
    ramp = Ramp(**raw["ramp"])
    with styled():
        figure = Figure(figsize=(9, 5.0), layout="constrained")
        _say(
            figure,
            "By waiting requests pods come late and go too soon; the recommendation turns once\n"
            "(real autoscalers, devices simulated)",
        )
        axes = figure.subplots()
        shift = _SHIFT * max(row["most"] for row in raw["rows"])
        for place, row in enumerate(raw["rows"]):
            minutes = [look["at_s"] / 60 for look in row["looks"]]
            ready = [look["ready"] for look in row["looks"]]
            _draw_arm(axes, row["arm"], minutes, ready, up=place * shift, attained=row["attained"])
        _draw_needed(axes, ramp, raw["capacity_rps"])
        axes.set_xticks(range(0, round(ramp.seconds / 60) + 1, 5))
        _finish(figure, axes, path)


def _say(figure: Figure, message: str) -> None:
    figure.suptitle(message, x=0.01, ha="left", fontsize=12, fontweight="bold")


def _draw_arm(
    axes: Axes,
    arm: str,
    minutes: Sequence[float],
    ready: Sequence[int],
    *,
    up: float,
    attained: float | None = None,
) -> None:
    """Draw one line, moved up a little."""
    name, colour, dash, width = _LINES[arm]
    label = name if attained is None else f"{name}: {attained:.0%} in time"
    shown = [pods + up for pods in ready]
    axes.step(minutes, shown, where="post", color=colour, ls=dash, lw=width, label=label)


def _draw_needed(axes: Axes, ramp: Ramp, capacity_rps: float) -> None:
    """Fill the pods that the load needs, and name both axes."""
    at = [ramp.seconds * n / 200 for n in range(201)]
    needed = [ramp.rate_rps(each) / (TARGET * capacity_rps) for each in at]
    axes.fill_between(
        [each / 60 for each in at], needed, color=FAINT, alpha=0.2, lw=0,
        label=f"load, in pods (at {TARGET:.0%})",
    )  # fmt: skip
    axes.set_xlabel("minutes (lines are moved up a little so that none hides another)")
    axes.set_ylabel("pods that are ready")
    axes.set_ylim(bottom=0)


def _finish(figure: Figure, axes: Axes, path: Path) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3,
                  frameon=False, fontsize=9)  # fmt: skip
    figure.savefig(path, dpi=110, metadata={"Software": None})
