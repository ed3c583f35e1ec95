"""The tuner's evaluation as committed, read back into what its plots take."""

import json
from pathlib import Path
from typing import Any

import msgspec

from tune_report.run import Results
from tune_report.score import EpisodeScore
from tune_report.workloads import workloads


def committed_scores(figures: Path) -> Results:
    """Read figures.json. It has no tracks of limits, so those of its scores are empty."""
    raw = json.loads(figures.read_text())
    # The trace names a workload only; its file is read when a load is drawn from it.
    known = tuple(w for w in workloads(Path("trace.csv")) if w.name in raw["capacity_rps"])
    seeds = tuple(sorted({score["seed"] for score in raw["scores"]}))
    results = Results(known, seeds, raw["capacity_rps"])
    for row in sorted(raw["scores"], key=lambda row: row["seed"]):
        results.scores.setdefault((row["workload"], row["arm"]), []).append(_score(row))
    return results


def _score(row: dict[str, Any]) -> EpisodeScore:
    control = row["control"]
    whole = row if control is None else {**row, "control": {**control, "track": []}}
    return msgspec.convert(whole, EpisodeScore)
