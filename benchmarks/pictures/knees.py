"""Two published knees over load: the first token, and the answers within the targets."""

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled
from published_knees.results import AS_PUBLISHED, TUNED, Knee, Knees, Replay

_ARMS: Final = ((AS_PUBLISHED, BEFORE, "-"), (TUNED, AFTER, "-"))
_WHAT: Final = ("TTFT, mean, ms", "TTFT, p90, s")
_TITLES: Final = (
    "70B, two H100: users who ask again and again",
    "4B, two RTX PRO 6000: requests a second",
)


def draw_knees(found: Knees, path: Path) -> None:
    """Draw both knees side by side."""
    with styled():
        figure = Figure(figsize=(9, 6.4), layout="constrained")
        axes = figure.subplots(2, 2, sharex="col")
        figure.suptitle(
            "Simulated: published loads with the published setting, and with the tuner",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for column, knee in enumerate(found.knees):
            _first_tokens(axes[0][column], knee, column)
            _good(axes[1][column], knee)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left",
                      ncols=3, frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _first_tokens(axis: Any, knee: Knee, column: int) -> None:
    what = _WHAT[column]
    scale = 1e3 if what.endswith("ms") else 1.0
    shown = [0.3]
    for arm, color, dash in _ARMS:
        rows = [each for each in knee.replays if each.arm == arm]
        seconds = [_ttft_s(each, is_mean="mean" in what) for each in rows]
        axis.plot([each.load for each in rows], seconds, color=color, ls=dash, lw=2, marker="o",
                  ms=4, label=f"simulated, {arm}")  # fmt: skip
        shown += seconds
    loads = {each.load for each in knee.replays}
    points = [
        (each.load, each.published / scale)
        for each in knee.fit
        if each.what == what and min(loads) <= each.load <= max(loads)
    ]
    axis.plot(*zip(*points, strict=True), "D", ms=7, mfc="none", mec=INK, mew=1.4, ls="none",
              label="published")  # fmt: skip
    shown += [seconds for _, seconds in points]
    target_s = knee.ttft_ms / 1e3
    axis.axhline(target_s, color=INK, ls="--", lw=1)
    axis.annotate(
        f"target of {100 * knee.objective:.0f} in 100: {target_s:g} s", (0.99, target_s),
        ha="right", xycoords=axis.get_yaxis_transform(), xytext=(0, 3), textcoords="offset points",
        fontsize=8.5, color=INK,
    )  # fmt: skip
    axis.set_title(_TITLES[column])
    axis.set_ylim(min(shown), max(shown) * 1.5)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis, [1.0, max(shown)])
    axis.set_ylabel(f"time to first token, {'mean' if 'mean' in what else 'p90'} (s)")


def _ttft_s(replay: Replay, *, is_mean: bool) -> float:
    return replay.ttft_mean_s if is_mean else replay.ttft_p90_s


def _good(axis: Any, knee: Knee) -> None:
    for arm, color, dash in _ARMS:
        rows = [each for each in knee.replays if each.arm == arm]
        loads = [each.load for each in rows]
        axis.plot(
            loads, [each.good_per_s for each in rows], color=color, ls=dash, lw=2, marker="o", ms=4
        )
    refused = max(knee.replays, key=lambda each: each.load if each.arm == TUNED else 0.0)
    axis.annotate(
        f"tuner: {refused.refused:.0%} refused at {refused.load:g}",
        (refused.load, refused.good_per_s),
        xytext=(0, -62), textcoords="offset points", ha="right", fontsize=8.5, color=FAINT,
    )  # fmt: skip
    axis.set_ylim(0, 1.15 * max(each.good_per_s for each in knee.replays))
    axis.set_ylabel("answers within the SLA, a second")
    axis.set_xlabel(knee.unit)
