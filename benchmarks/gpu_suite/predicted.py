"""Predicts the times of the suite's steps on this GPU, which its page prints beside the measured.

A process of its own works it out, for it replaces torch's CUDA by stand-ins; where it fails, the
page has no predictions, and nothing else is lost.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from os import environ
from pathlib import Path

_FILE = "predicted.json"
_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted time of the figure of this name, with its range."""

    name: str
    likely_ms: float
    best_ms: float
    worst_ms: float


def predict(device: str, folder: Path) -> None:
    """Write the predictions for a GPU of this name into the folder; none where none are known."""
    command = [sys.executable, "-m", "step_work", "--json", device]
    hidden = {**environ, "CUDA_VISIBLE_DEVICES": ""}
    try:
        run = subprocess.run(
            command, env=hidden, capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"No step is predicted: {error}")
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_text(run.stdout)


def read(folder: Path) -> tuple[Prediction, ...]:
    """Read what was predicted for the GPU of this folder."""
    path = folder / _FILE
    rows = json.loads(path.read_text()) if path.exists() else []
    return tuple(Prediction(row["name"], *row["ms"]) for row in rows)
