"""The simulated scenes over time: a batch size that moves, and a flood with lanes and without."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled
from scenes.batch_size import BatchScene
from scenes.bursts import BurstScene
from scenes.flood import FloodScene, FloodTrack

_LINES: Final = ((BEFORE, "-"), (AFTER, "-"))
_WHY: Final = {"dynamic, in buckets": " (one batch at a time)"}
"""Added to the title of a way of batching, to explain a share that surprises."""


def draw_batch_size(scene: BatchScene, path: Path) -> None:
    """Draw the p99 of TPOT above, the max batch size and what runs below."""
    fixed, tuned = scene.tracks
    with styled():
        figure = Figure(figsize=(9, 5.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        for track, name, (color, dash) in zip(
            (fixed, tuned), ("fixed: batch 1,024", "Paceline's tuner"), _LINES, strict=True
        ):
            values = [math.nan if ms is None else ms for ms in track.tpot_p99_ms]
            above.plot(scene.at_s, values, color=color, ls=dash, lw=2)
            _name(above, scene.at_s[-1], values[-1], name, color)
        _target(above, scene.tpot_ms, f"target {scene.tpot_ms:.0f} ms")
        above.set_title("The max batch size, tuned live to a TPOT target (simulated, one H100)")
        above.set_ylabel("TPOT p99, last 20 s (ms)")
        above.set_ylim(0, None)
        below.plot(scene.at_s, fixed.running, color=BEFORE, lw=1.5)
        _name(below, scene.at_s[-1], fixed.running[-1], "running, fixed", BEFORE)
        below.step(scene.at_s, tuned.batch_size, where="post", color=AFTER, lw=2.5)
        _name(below, scene.at_s[-1], tuned.batch_size[-1] + 12, "max batch size, tuned", AFTER)
        below.plot(scene.at_s, tuned.running, color="#56B4E9", lw=1.5, ls=":")
        _name(below, scene.at_s[-1], tuned.running[-1] - 12, "running, tuned", "#56B4E9")
        below.set_ylabel("sequences")
        below.set_xlabel("seconds")
        top = 1.1 * max(*fixed.running, *tuned.batch_size)
        below.set_ylim(0, top)
        for axis in (above, below):
            axis.axvline(scene.shift_s, color=FAINT, lw=0.8)
            axis.set_xlim(0, scene.at_s[-1])
        _note(below, 4, top, "reasoning: short prompts, long answers")
        _note(below, scene.shift_s + 4, top, "documents: prompts ten times as long")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_flood(scene: FloodScene, path: Path) -> None:
    """Draw the p99 of interactive first tokens above, the flood's tokens below."""
    with styled():
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        for track, (color, dash) in zip(scene.tracks, _LINES, strict=True):
            seconds = [ms / 1e3 for ms in track.ttft_p99_ms]
            above.plot(scene.at_s, seconds, color=color, ls=dash, lw=2, label=_label(track))
            below.plot(scene.at_s, track.flood_tokens_per_s, color=color, ls=dash, lw=2)
        above.set_yscale("log")
        above.set_ylim(0.08, 150)
        plain_seconds(above)
        above.set_title(
            f"{scene.flood:,} batch requests at once beside {scene.interactive_rps:g} interactive"
            " ones a second (simulated, one H100)"
        )
        above.set_ylabel("TTFT p99 of people (s)")
        below.set_ylabel("the flood's tokens/s")
        below.set_xlabel("seconds")
        below.set_ylim(0, None)
        for axis in (above, below):
            axis.axvline(scene.flood_s, color=FAINT, lw=0.8)
            axis.set_xlim(scene.at_s[0], scene.at_s[-1])
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _label(track: FloodTrack) -> str:
    return f"the flood {track.name}: all of it served after {track.served_after_s:.0f} s"


def plain_seconds(axis: Any) -> None:
    """Label a logarithmic axis of seconds with 0.1, 1, 10, 100."""
    plain_log_ticks(axis.yaxis, [0.1, 150.0])
    ticks: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _target(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color=INK, ls="--", lw=1)
    axis.annotate(text, (0.99, value), xycoords=axis.get_yaxis_transform(), xytext=(0, 4),
                  ha="right", textcoords="offset points", fontsize=8.5, color=INK)  # fmt: skip


def _name(axis: Any, x: float, y: float, text: str, color: str) -> None:
    axis.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center",
                  fontsize=9, color=color, annotation_clip=False)  # fmt: skip


def _note(axis: Any, x: float, y: float, text: str) -> None:
    axis.annotate(text, (x, y), xytext=(0, -10), textcoords="offset points", fontsize=8.5,
                  color=FAINT)  # fmt: skip


def draw_bursts(scene: BurstScene, path: Path) -> None:
    """Draw each request's time to first token, one panel for each way of batching."""
    target_s = scene.ttft_ms / 1e3
    with styled():
        figure = Figure(figsize=(9, 6.8), layout="constrained")
        axes = figure.subplots(len(scene.tracks), 1, sharex=True, sharey=True)
        figure.suptitle(
            "Under bursts only continuous batching has every first token in time"
            " (simulated, one H100)",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for axis, track in zip(axes, scene.tracks, strict=True):
            dots = [
                (at_s, ms / 1e3)
                for at_s, ms in zip(scene.arrived_s, track.ttft_ms, strict=True)
                if ms is not None
            ]
            for color, mark, name, chosen in (
                (AFTER, "o", "in time", [dot for dot in dots if dot[1] <= target_s]),
                (BEFORE, "x", "too late", [dot for dot in dots if dot[1] > target_s]),
            ):
                axis.plot([x for x, _ in chosen], [y for _, y in chosen], mark, color=color, ms=4.5,
                          label=f"first token {name}")  # fmt: skip
            axis.axhline(target_s, color=INK, ls="--", lw=1, label=f"target {target_s:g} s")
            for place, at_s in enumerate(scene.bursts_s):
                label = f"{scene.burst} requests at once" if place == 0 else None
                axis.axvline(at_s, color=FAINT, lw=0.8, alpha=0.5, label=label)
            why = _WHY.get(track.name, "")
            axis.set_title(
                f"{track.name}: {track.in_time:.0%} in time, {track.padding:.0%} padding{why}"
            )
            axis.set_ylim(0.01, 60)
            axis.set_yscale("log")
            axis.set_yticks((0.01, 0.1, 1.0, 10.0), ["0.01", "0.1", "1", "10"])
            axis.minorticks_off()
        axes[-1].set_xlim(0, scene.bursts_s[-1] + scene.bursts_s[0])
        axes[-1].set_xlabel("when a request came (s)")
        figure.supylabel("time to first token (s)", fontsize=10, color=INK)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4,
                      frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})
