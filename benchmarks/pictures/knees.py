"""Two published knees over load: the answers within the targets, and the first token."""

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, INK, plain_log_ticks, styled
from published_knees.results import AS_PUBLISHED, TUNED, Knee, Knees, Replay

_ARMS: Final = ((AS_PUBLISHED, BEFORE), (TUNED, AFTER))
_PUBLISHED: Final = "TTFT, p90, s"
"""The figure that was published of the second knee at its own objective; of the first are means."""
_TITLES: Final = ("70B, two H100", "4B, two RTX PRO 6000")
_UNITS: Final = ("closed loop: number of users", "requests a second")
_P99: Final = 0.99


def draw_knees(found: Knees, path: Path) -> None:
    """Draw both knees side by side."""
    with styled():
        figure = Figure(figsize=(9, 6.6), layout="constrained")
        axes = figure.subplots(2, 2, sharex="col")
        figure.suptitle(
            "Past the knee hardly an answer is within the SLA;"
            " with the tuner as many as ever are,\nand the rest is refused (simulated)",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for column, knee in enumerate(found.knees):
            _good(axes[0][column], knee)
            _first_tokens(axes[1][column], knee)
            axes[0][column].set_title(_TITLES[column])
            axes[1][column].set_xlabel(_UNITS[column])
        figure.legend(*axes[1][1].get_legend_handles_labels(), loc="outside lower left",
                      ncols=3, frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _first_tokens(axis: Any, knee: Knee) -> None:
    """Draw the percentile that the objective asks for, and what was published of it."""
    target_s = knee.ttft_ms / 1e3
    shown = [target_s]
    for arm, color in _ARMS:
        rows = _rows(knee, arm)
        seconds = [_ttft_s(each, knee.objective) for each in rows]
        axis.plot([each.load for each in rows], seconds, color=color, lw=2, marker="o", ms=4,
                  label=f"simulated, {arm}")  # fmt: skip
        shown += seconds
    points = [(each.load, each.published) for each in knee.fit if each.what == _PUBLISHED]
    if points:
        axis.plot(*zip(*points, strict=True), "D", ms=7, mfc="none", mec=INK, mew=1.4, ls="none",
                  label="published")  # fmt: skip
        shown += [seconds for _, seconds in points]
    axis.axhline(target_s, color=INK, ls="--", lw=1)
    axis.annotate(f"target {target_s:g} s", (0.99, target_s), ha="right",
                  xycoords=axis.get_yaxis_transform(), xytext=(0, 4), textcoords="offset points",
                  fontsize=9, color=INK)  # fmt: skip
    axis.set_ylim(min(shown) / 1.4, max(shown) * 1.5)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis, shown)
    axis.set_ylabel(f"TTFT p{100 * knee.objective:.0f} of answers (s)")


def _ttft_s(replay: Replay, objective: float) -> float:
    return replay.ttft_p99_s if objective == _P99 else replay.ttft_p90_s


def _good(axis: Any, knee: Knee) -> None:
    for arm, color in _ARMS:
        rows = _rows(knee, arm)
        axis.plot([each.load for each in rows], [each.good_per_s for each in rows], color=color,
                  lw=2, marker="o", ms=4)  # fmt: skip
    most = _rows(knee, TUNED)[-1]
    axis.annotate(
        f"{most.refused:.0%} refused", (most.load, most.good_per_s), xytext=(4, 7),
        textcoords="offset points", ha="right", fontsize=9, color=AFTER,
    )  # fmt: skip
    # Their first tokens may be in time all the same, which the lower panel would not explain.
    lost = next((each for each in _rows(knee, AS_PUBLISHED) if each.good == 0), None)
    if lost is not None:
        axis.annotate(
            f"at {lost.load:g} TPOT is missed:\np99 {lost.tpot_p99_ms:.0f} ms,"
            f" target {knee.tpot_ms:.0f} ms",
            (lost.load, 0), xytext=(6, 8), textcoords="offset points", fontsize=9, color=BEFORE,
        )  # fmt: skip
    axis.set_ylim(0, 1.2 * max(each.good_per_s for each in knee.replays))
    axis.set_ylabel("answers within the SLA, a second")


def _rows(knee: Knee, arm: str) -> list[Replay]:
    """Return the replays of one way, by load."""
    return sorted((each for each in knee.replays if each.arm == arm), key=lambda each: each.load)
