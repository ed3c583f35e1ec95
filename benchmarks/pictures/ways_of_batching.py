"""Five ways of batching from the committed comparison: goodput, p99 over time, and padding."""

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from paceline_cli.bench.compare_plots import p99_over_time
from paceline_cli.bench.comparison import Comparison
from paceline_cli.bench.sweep_points import worth
from paceline_cli.plot_style import INK, styled

_WAYS: Final = (
    ("static", "#D55E00", ""),
    ("dynamic, mixed", "#CC79A7", "//"),
    ("dynamic, bucketed", "#E69F00", ".."),
    ("continuous", "#56B4E9", ""),
    ("continuous, tuned", "#0072B2", ""),
)
"""Arm, colour as in the command's own charts, and hatch."""
_PADDED: Final = _WAYS[:3]
_MEASURED: Final = "measured, two CPU cores"
_BAR: Final = 0.26
_GOODPUT_BAR: Final = 0.17


def draw_goodput(comparison: Comparison, path: Path) -> None:
    """Draw goodput and its interval by load, one bar for each way of batching."""
    loads = sorted({each.load for each in comparison.found})
    found = {(each.arm, each.load): worth(each.measured) for each in comparison.found}
    with styled():
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        for place, (arm, color, hatch) in enumerate(_WAYS):
            xs = [at + (place - 2) * _GOODPUT_BAR for at in range(len(loads))]
            values = [found[arm, load].value or 0.0 for load in loads]
            bars = axis.bar(xs, values, width=0.92 * _GOODPUT_BAR, color=color, hatch=hatch,
                            edgecolor="white", label=arm)  # fmt: skip
            ends = [(found[arm, load].low or 0.0, found[arm, load].high or 0.0) for load in loads]
            axis.vlines(xs, *zip(*ends, strict=True), color=INK, lw=1)
            for bar, value, (_, high) in zip(bars, values, ends, strict=True):
                axis.annotate(f"{value:.0f}", (bar.get_x() + bar.get_width() / 2, high),
                              xytext=(0, 3), textcoords="offset points", ha="center",
                              fontsize=9)  # fmt: skip
        axis.set_xticks(range(len(loads)), [f"{load:g}" for load in loads])
        axis.set_ylim(bottom=0)
        axis.set_title(f"Only continuous batching keeps the targets at full load\n({_MEASURED})")
        axis.set_ylabel("goodput: output tokens/s\nof answers within the targets")
        axis.set_xlabel(_load(comparison))
        figure.legend(loc="outside right upper")
    _save(figure, path, (7.6, 4.4))


def draw_p99_over_time(comparison: Comparison, path: Path) -> None:
    """Draw the moving p99 of TTFT and ITL at full load, with the legend below."""
    figure = p99_over_time(comparison)
    first, gaps = figure.axes
    with styled():
        first.set_title(f"Static and dynamic batches fall behind ({_MEASURED})")
        gaps.set_title("")
        first.set_ylabel("TTFT p99 (ms)")
        gaps.set_ylabel("ITL p99 (ms)")
        gaps.set_xlabel(f"time after the warm-up (s), at {_rate(comparison):g} requests a second")
    # Above its line the name of the target would lie on a curve.
    first.texts[0].set_position((0, -11))
    _save(figure, path, (7.6, 5.8))


def draw_padding(comparison: Comparison, path: Path) -> None:
    """Draw the share of computed tokens that only filled batches up, by load."""
    loads = sorted({each.load for each in comparison.found})
    shares = {(each.arm, each.load): 100 * each.padding_share for each in comparison.found}
    with styled():
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        for place, (arm, color, hatch) in enumerate(_PADDED):
            bars = axis.bar(
                [at + (place - 1) * _BAR for at in range(len(loads))],
                [shares[arm, load] for load in loads],
                width=0.9 * _BAR, color=color, hatch=hatch, edgecolor="white", label=arm,
            )  # fmt: skip
            axis.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=9)
        axis.set_xticks(range(len(loads)), [f"{load:g}" for load in loads])
        axis.set_xlabel(_load(comparison))
        axis.set_ylabel("padding, % of computed tokens")
        axis.set_ylim(0, 1.1 * max(shares.values()))
        _, mixed, buckets = (arm for arm, _, _ in _PADDED)
        saved = [100 * (1 - shares[buckets, load] / shares[mixed, load]) for load in loads]
        axis.set_title(
            f"Buckets save {min(saved):.0f} to {max(saved):.0f} % of the padding ({_MEASURED})"
        )
        figure.legend(loc="outside right upper")
    _save(figure, path, (7.6, 3.6))


def _rate(comparison: Comparison) -> float:
    """Return the requests a second that are a load of 1."""
    full = next(each.measured for each in comparison.found if each.load == 1)
    return full.offered / full.seconds


def _load(comparison: Comparison) -> str:
    return f"load, as a multiple of {_rate(comparison):g} requests a second"


def _save(figure: Figure, path: Path, inches: tuple[float, float]) -> None:
    """Replace the legend by one below the plots, and write the picture."""
    (beside,) = figure.legends
    beside.remove()
    with styled():
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower left",
                      ncols=3, frameon=False, fontsize=9)  # fmt: skip
        figure.set_size_inches(inches)
        figure.savefig(path, dpi=110, metadata={"Software": None})
