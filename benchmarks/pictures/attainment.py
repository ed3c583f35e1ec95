"""The tuner beside fixed limits and AIMD over load, for the README."""

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled
from tune_report.page import steady_of
from tune_report.run import OURS, Results
from tune_report.targets import ORACLE, median_interval

_ARMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    OURS: ("Paceline's tuner", {"color": AFTER, "lw": 2.5, "marker": "o", "ms": 4}),
    ORACLE: (
        "best fixed limits, searched for each load",
        {"color": INK, "ls": "none", "marker": "o", "ms": 9, "mfc": "none", "mew": 1.2},
    ),
    "AIMD 256/2048": (
        "AIMD: additive increase, multiplicative decrease",
        {"color": FAINT, "lw": 1.5, "marker": "o", "ms": 4},
    ),
    "default 256/2048": (
        "fixed: batch 256, budget 2,048",
        {"color": BEFORE, "lw": 1.5, "marker": "o", "ms": 4},
    ),
    "default 1024/8192": (
        "fixed: batch 1,024, budget 8,192",
        {"color": BEFORE, "ls": ":", "lw": 2.0, "marker": "o", "ms": 4},
    ),
}
_OBJECTIVE: Final = 0.99


def draw_attainment(results: Results, path: Path) -> None:
    """Draw the share of offered requests that met every target, as the median over seeds."""
    steady = steady_of(results)
    loads = [100 * (w.load or 0.0) for w in steady]
    with styled():
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        axes = figure.subplots()
        for arm, (label, style) in _ARMS.items():
            shares = [
                median_interval([s.good / s.offered for s in results.scores[w.name, arm]])[0]
                for w in steady
            ]
            axes.plot(loads, shares, label=label, **style)
        axes.axhline(_OBJECTIVE, color=INK, ls="--", lw=1)
        axes.annotate("99 % objective", (1, _OBJECTIVE), xycoords=axes.get_yaxis_transform(),
                      xytext=(0, 4), textcoords="offset points", ha="right",
                      fontsize=9)  # fmt: skip
        axes.axvline(100, color=FAINT, lw=0.8)
        axes.annotate("capacity of the\nbest fixed limits", (100, 0.3), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=9)  # fmt: skip
        axes.set_title(
            "The tuner stays at 99 % up to the capacity of the best fixed limits"
            " (simulated, one H100)"
        )
        sla = steady[0].setting.sla
        axes.set_ylabel(
            "requests within every target\n"
            f"(p99: first token {(sla.ttft_p99_ms or 0) / 1e3:g} s,"
            f" between tokens {sla.itl_p99_ms:.0f} ms)",
            fontsize=9,
        )
        axes.set_xlabel("load, % of what the best fixed limits serve at 99 %")
        axes.set_ylim(0, 1.06)
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
        figure.savefig(path, dpi=110, metadata={"Software": None})
