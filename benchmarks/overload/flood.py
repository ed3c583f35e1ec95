"""The flood, second by second: kept as flood.json, and drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from overload.asking import Outcome
from overload.report import Run
from overload.scenes import TIMES_CAPACITY
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled

_MOST_POINTS: Final = 600
_SMOOTHED_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Flood:
    """One run above capacity: answers, refusals and memory over time."""

    machine: str
    times_capacity: float
    capacity_rps: float
    seconds: float
    every_s: float
    """Time between two points of each series below."""
    good: Sequence[int]
    """Requests that ended whole and in time since the point before."""
    refused: Sequence[int]
    sampled_s: Sequence[float]
    """When memory was read."""
    engine_mib: Sequence[float]
    sidecar_mib: Sequence[float]


def flood_of(run: Run) -> Flood:
    """Count the flood in steps of a second, or of more where that gives too many points."""
    scene = run.flood
    every_s = max(1, math.ceil(scene.seconds / _MOST_POINTS))
    good, refused = ([0] * math.ceil(scene.seconds / every_s) for _ in range(2))
    for one in scene.asked:
        place = int((one.ended_at - scene.began_at) / every_s)
        if place < len(good):
            good[place] += run.is_good(one)
            refused[place] += run.outcome(one) is Outcome.REFUSED
    samples = scene.samples[::every_s]
    return Flood(
        machine=run.machine.partition(",")[0],
        times_capacity=TIMES_CAPACITY,
        capacity_rps=run.capacity_rps,
        seconds=scene.seconds,
        every_s=every_s,
        good=good,
        refused=refused,
        sampled_s=[round(one.at_s, 1) for one in samples],
        engine_mib=[round(one.engine_mib, 1) for one in samples],
        sidecar_mib=[round(one.sidecar_mib, 1) for one in samples],
    )


def draw_flood(flood: Flood, path: Path) -> None:
    """Draw good answers beside the capacity, refusals, and memory."""
    at_s = [flood.every_s * (place + 1) for place in range(len(flood.good))]
    good, refused = (_smooth(series, flood.every_s) for series in (flood.good, flood.refused))
    share = sum(flood.good) / flood.seconds / flood.capacity_rps
    with styled():
        figure = Figure(figsize=(9, 6.6), layout="constrained")
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        above.plot(at_s, good, color=AFTER, lw=2)
        _name(above, at_s[-1], good[-1], "whole\nand in time", AFTER)
        above.axhline(flood.capacity_rps, color=INK, ls="--", lw=1)
        above.annotate(f"dashed: capacity, {flood.capacity_rps:.1f} a second", (0.01, 0.9),
                       xycoords="axes fraction", fontsize=9, color=INK)  # fmt: skip
        above.set_ylim(0, 1.35 * max(*good, flood.capacity_rps))
        above.set_ylabel("answers a second")
        middle.plot(at_s, refused, color=BEFORE, lw=2)
        _name(middle, at_s[-1], refused[-1], "refused\nwith 429", BEFORE)
        middle.set_ylim(0, 1.25 * max(1.0, *refused))
        middle.set_ylabel("refusals a second")
        for series, name, color in (
            (flood.engine_mib, "engine", INK),
            (flood.sidecar_mib, "sidecar", FAINT),
        ):
            below.plot(flood.sampled_s, series, color=color, lw=2)
            held = f"{name}\n{series[0]:,.0f} to {series[-1]:,.0f}"
            _name(below, flood.sampled_s[-1], series[-1], held, color)
        below.set_ylim(0, 1.25 * max(flood.engine_mib))
        below.yaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
        below.set_ylabel("memory (MiB)")
        below.set_xlabel(f"seconds of the load (rates: mean of the last {_SMOOTHED_S:.0f} s)")
        below.set_xlim(0, at_s[-1])
        _title(figure, flood.times_capacity, share, flood.machine)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_totals(record: dict[str, Any], path: Path) -> None:
    """Draw what became of the flood as a whole, from the figures of overload.json."""
    flood = next(each for each in record["scenes"] if "times the capacity" in each["name"])
    capacity = record["capacity_rps"]
    rows = (
        ("capacity", capacity, INK),
        ("in the flood: whole and in time", flood["good_rps"], AFTER),
        ("in the flood: refused with 429", flood["outcomes"]["refused"] / flood["seconds"], BEFORE),
    )
    with styled():
        figure = Figure(figsize=(9, 2.7), layout="constrained")
        axes = figure.subplots()
        for place, (_, rps, color) in enumerate(rows):
            axes.barh(place, rps, color=color, height=0.6)
            axes.annotate(f"{rps:.1f}", (rps, place), xytext=(5, 0), textcoords="offset points",
                          va="center", color=color)  # fmt: skip
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1 * max(rps for _, rps, _ in rows))
        axes.set_xlabel(f"requests a second, over {flood['seconds'] / 60:g} minutes")
        times = float(flood["name"].partition(" ")[0])
        machine = record["machine"].partition(",")[0]
        _title(figure, times, flood["good_rps"] / capacity, machine)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _title(figure: Figure, times: float, share: float, machine: str) -> None:
    figure.suptitle(
        f"{times:g} times the capacity: goodput stays at {100 * share:.0f} % of it"
        f" (measured, {machine})",
        x=0.01, ha="left", fontsize=11, fontweight="bold",
    )  # fmt: skip


def _name(axes: Any, x: float, y: float, text: str, color: str) -> None:
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center",
                  fontsize=9, color=color, annotation_clip=False)  # fmt: skip


def _smooth(counts: Sequence[int], every_s: float) -> list[float]:
    """Return the mean a second over the last seconds."""
    window = max(1, round(_SMOOTHED_S / every_s))
    return [
        sum(counts[max(0, end - window) : end]) / (min(end, window) * every_s)
        for end in range(1, len(counts) + 1)
    ]
