"""The tuner's limits over time in the few runs that a picture shows: tracks.json.

A whole evaluation writes it. `PYTHONPATH=benchmarks python -m tune_report.tracks` plays only these
runs again, in a few minutes, and keeps them if their scores are those of figures.json.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tune_report.cache import ROOT
from tune_report.jobs import Play
from tune_report.run import OURS, Results
from tune_report.score import EpisodeScore

Track = Sequence[tuple[float, int, int, float | None, int, int]]
"""Time, max batch size, token budget, step target, running, waiting after each tick."""
DRAWN: Final[Mapping[str, str]] = {
    "step": "the load steps up",
    "overload": "more load than can be served, for a while",
    "burst CV 2.5": "bursts",
    "hot neighbour": "another process slows the device down, for a while",
    "SLA change": "the ITL target is lowered",
}
"""Workloads of the first setting, and what happens in them."""
_KEPT: Final = ROOT / "benchmarks" / "results" / "tuning"


def tracks_of(results: Results) -> dict[str, Track]:
    """Return the track of the first seed of each drawn workload that was played."""
    setting = results.workloads[0].setting.name
    found: dict[str, Track] = {}
    for short in DRAWN:
        name = f"{setting}: {short}"
        control = results.scores[name, OURS][0].control if results.has(name, OURS) else None
        if control is not None and control.track:
            found[name] = control.track
    return found


def write_tracks(tracks: Mapping[str, Track], path: Path) -> None:
    """Write JSON with one run a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(rounded(track))}" for name, track in tracks.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def plain_score(score: EpisodeScore) -> dict[str, Any]:
    """Return a score as figures.json has it: without its track."""
    plain: dict[str, Any] = msgspec.to_builtins(score)
    if plain["control"] is not None:
        del plain["control"]["track"]
    return plain


def rounded(value: object) -> object:
    """Round to five digits, as precise as a simulation is."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def main() -> None:
    """Play the drawn runs again. Fails where a score is not that of figures.json."""
    raw = json.loads((_KEPT / "figures.json").read_text())
    seed = min(row["seed"] for row in raw["scores"])
    known = {(row["workload"], row["arm"], row["seed"]): row for row in raw["scores"]}
    first = next(iter(raw["best_single_static"]))
    tracks: dict[str, Track] = {}
    for short in DRAWN:
        name = f"{first}: {short}"
        score = Play(name, OURS, seed, raw["capacity_rps"][name], None).run()
        named = {"workload": name, "arm": OURS, "seed": seed}
        if rounded({**named, **plain_score(score)}) != known[name, OURS, seed]:
            sys.exit(f"{name}: the score is not that of figures.json; evaluate everything anew")
        assert score.control is not None
        tracks[name] = score.control.track
        print(f"played: {name}", flush=True)
    write_tracks(tracks, _KEPT / "tracks.json")


if __name__ == "__main__":
    main()
