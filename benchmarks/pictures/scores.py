"""The tuner's evaluation as committed, read back into what its plots take."""

import json
from pathlib import Path
from typing import Any

import msgspec

from tune_report.run import OURS, Results
from tune_report.score import EpisodeScore
from tune_report.workloads import workloads


def committed_scores(figures: Path, tracks: Path | None = None) -> Results:
    """Read figures.json; a score has its track of limits where tracks.json keeps it."""
    raw = json.loads(figures.read_text())
    kept = {} if tracks is None else json.loads(tracks.read_text())
    # The trace names a workload only; its file is read when a load is drawn from it.
    known = tuple(w for w in workloads(Path("trace.csv")) if w.name in raw["capacity_rps"])
    seeds = tuple(sorted({score["seed"] for score in raw["scores"]}))
    results = Results(known, seeds, raw["capacity_rps"])
    for row in sorted(raw["scores"], key=lambda row: row["seed"]):
        is_kept = row["arm"] == OURS and row["seed"] == seeds[0]
        track = kept.get(row["workload"], []) if is_kept else []
        results.scores.setdefault((row["workload"], row["arm"]), []).append(_score(row, track))
    return results


def _score(row: dict[str, Any], track: list[Any]) -> EpisodeScore:
    control = row["control"]
    whole = row if control is None else {**row, "control": {**control, "track": track}}
    return msgspec.convert(whole, EpisodeScore)
