"""The tuner beside fixed limits and AIMD over load, for the README."""

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled
from tune_report.page import steady_of
from tune_report.run import OURS, Results
from tune_report.targets import median_interval

_ARMS: Final = {
    OURS: ("Paceline's tuner", AFTER, "-", 2.5),
    "AIMD 256/2048": ("AIMD", FAINT, "-", 1.5),
    "default 256/2048": ("fixed: batch 256, budget 2,048", BEFORE, "-", 1.5),
    "default 1024/8192": ("fixed: batch 1,024, budget 8,192", BEFORE, ":", 2.0),
}
_OBJECTIVE: Final = 0.99


def draw_attainment(results: Results, path: Path) -> None:
    """Draw the share of offered requests that met every target, as the median over seeds."""
    steady = steady_of(results)
    loads = [100 * (w.load or 0.0) for w in steady]
    with styled():
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes = figure.subplots()
        for arm, (label, colour, dash, width) in _ARMS.items():
            shares = [
                median_interval([s.good / s.offered for s in results.scores[w.name, arm]])[0]
                for w in steady
            ]
            axes.plot(loads, shares, color=colour, ls=dash, lw=width, marker="o", ms=4, label=label)
        axes.axhline(_OBJECTIVE, color=INK, ls="--", lw=1)
        axes.axvline(100, color=FAINT, lw=0.8)
        axes.set_title("Requests within every target, of all offered (simulated, H100, ITL 50 ms)")
        axes.set_xlabel("load, % of what the best fixed limits serve at 99 %")
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.legend(frameon=False, loc="lower left")
        figure.savefig(path, dpi=110, metadata={"Software": None})
