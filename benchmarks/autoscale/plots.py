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

_ARMS: Final = {
    ORACLE: ("knows the ramp", INK, "-", 1.5),
    OURS: ("recommendedReplicas", AFTER, "-", 2.5),
    UTILIZATION: ("λ/λ*", AFTER, ":", 2.0),
    "CPU at 80 %": ("CPU", FAINT, "-", 1.5),
    "5 waiting requests a pod": ("queue", BEFORE, "-", 1.5),
}
_COLD_S: Final = 120.0
_IN_FLIGHT: Final = "requests in flight, by a load test"
_LINES: Final = {**_ARMS, _IN_FLIGHT: ("in flight", FAINT, "--", 1.5)}
"""The simulated ramps draw `_ARMS` alone."""


def draw_ramps(raw: Mapping[str, Any], drawn: Mapping[str, Ramp], path: Path) -> None:
    """Draw one panel for each ramp, the pods that the load needs below them."""
    capacity_rps = raw["pod"]["capacity_rps"]
    with styled():
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        panels = figure.subplots(1, len(drawn))
        for axes, (name, ramp) in zip(panels, drawn.items(), strict=True):
            for row in raw["rows"]:
                chosen = (row["ramp"], row["cold_s"], row["checks"]) == (name, _COLD_S, False)
                if chosen and row["arm"] in _ARMS:
                    minutes = [SYNC_S * (n + 1) / 60 for n in range(len(row["ready"]))]
                    _draw_arm(axes, row["arm"], minutes, row["ready"])
            _draw_needed(axes, ramp, capacity_rps)
            axes.set_title(f"From {name}, {_COLD_S:.0f} s to start (simulated)")
        panels[0].legend(frameon=False, loc="upper left", fontsize=8)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_real(raw: Mapping[str, Any], path: Path) -> None:
    """Draw the pods that were ready on the real ramp, the pods that the load needs below them."""
    ramp = Ramp(**raw["ramp"])
    with styled():
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes = figure.subplots()
        for row in raw["rows"]:
            minutes = [look["at_s"] / 60 for look in row["looks"]]
            _draw_arm(axes, row["arm"], minutes, [look["ready"] for look in row["looks"]])
        _draw_needed(axes, ramp, raw["capacity_rps"])
        axes.set_title("From 0.6 to 3 times what a pod serves, and back: real autoscalers")
        axes.legend(frameon=False, loc="upper left", fontsize=8)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw_arm(axes: Axes, arm: str, minutes: Sequence[float], ready: Sequence[int]) -> None:
    label, colour, dash, width = _LINES[arm]
    axes.step(minutes, ready, where="post", color=colour, ls=dash, lw=width, label=label)


def _draw_needed(axes: Axes, ramp: Ramp, capacity_rps: float) -> None:
    """Fill the pods that the load needs, and name both axes."""
    at = [ramp.seconds * n / 200 for n in range(201)]
    needed = [ramp.rate_rps(each) / (TARGET * capacity_rps) for each in at]
    axes.fill_between([each / 60 for each in at], needed, color=FAINT, alpha=0.2, lw=0)
    axes.set_xlabel("minutes")
    axes.set_ylabel("pods that are ready")
