"""Three pictures of the README's table, which shows them 300 pixels wide: one message each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from paceline_cli.bench.sweep_points import Sweep
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled
from pictures.sweep import STAR, draw_curve, dress_limit, p99_s, span_seconds
from scenes.bursts import BurstScene
from scenes.flood import FloodScene

_INCHES: Final = (3.0, 2.3)
_DPI: Final = 220
_ALL: Final = 1.0


def draw_burst_shares(scene: BurstScene, path: Path) -> None:
    """Draw the share of first tokens in time, one bar for each way of batching."""
    names = [track.name.split(" waits")[0].rstrip(",") for track in scene.tracks]
    shares = [100 * track.in_time for track in scene.tracks]
    colors = [AFTER if track.in_time == _ALL else BEFORE for track in scene.tracks]
    with _large():
        figure = Figure(figsize=_INCHES, layout="constrained")
        axis = figure.subplots()
        bars = axis.barh(names, shares, height=0.7, color=colors)
        axis.bar_label(bars, fmt="%.0f %%", padding=3, fontweight="bold")
        axis.invert_yaxis()
        axis.set_xlim(0, 125)
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(left=False)
        _say(figure, f"First tokens within {scene.ttft_ms / 1e3:g} s")
        _save(figure, path)


def draw_batch_sizes(sweep: Sweep, path: Path) -> None:
    """Draw the p99 of whole answers and of gaps over the max batch size, on one ratio."""
    points, chosen = sweep.along("batch_size"), sweep.chosen
    assert chosen is not None
    with _large():
        figure = Figure(figsize=_INCHES, layout="constrained")
        for axis, (name, what, low) in zip(
            figure.subplots(1, 2),
            (("E2E", "answer p99 (s)", 0.4), ("ITL", "gap p99 (s)", 0.004)),
            strict=True,
        ):
            draw_curve(axis, points, name, name)
            axis.plot([chosen.batch_size], [p99_s(chosen.measured, name)], "*", ms=14, color=STAR,
                      mec="white", zorder=5)  # fmt: skip
            span_seconds(axis, low, 200 * low)
            dress_limit(axis, [point.setting.place for point in points])
            axis.set_xticks([1, 8, 64])
            axis.set_title(what, fontweight="normal")
        figure.supxlabel("max batch size", fontsize=10, color=INK)
        _say(figure, "Past 16 answers end no sooner")
        _save(figure, path)


def draw_flood_first_tokens(scene: FloodScene, path: Path) -> None:
    """Draw the p99 of people's first tokens while the flood is served."""
    without, lane = scene.tracks
    with _large():
        figure = Figure(figsize=_INCHES, layout="constrained")
        axis = figure.subplots()
        for track, color, name, y in (
            (without, BEFORE, "no lanes", 12),
            (lane, AFTER, "with lanes", 0.33),
        ):
            axis.plot(scene.at_s, [ms / 1e3 for ms in track.ttft_p99_ms], color=color, lw=2.5)
            axis.text(85, y, name, color=color, fontweight="bold")
        axis.axvline(scene.flood_s, color=FAINT, lw=0.8)
        axis.set_xlim(scene.at_s[0], scene.at_s[-1])
        span_seconds(axis, 0.06, 150)
        axis.set_yticks([0.1, 1, 10, 100], ["0.1 s", "1 s", "10 s", "100 s"])
        axis.set_xlabel("seconds")
        _say(figure, "People's first tokens, p99")
        _save(figure, path)


@contextmanager
def _large() -> Iterator[None]:
    """Draw in the house style, in letters that are legible at a third of a page's width."""
    with styled(), mpl.rc_context({"font.size": 10, "axes.titlesize": 10}):
        yield


def _say(figure: Figure, message: str) -> None:
    figure.suptitle(message, x=0.01, ha="left", fontsize=11, fontweight="bold")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
