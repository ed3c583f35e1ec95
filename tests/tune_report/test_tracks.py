"""The tuner's limits over time are kept beside the scores, and drawn from there."""

from pathlib import Path

import pytest

from pictures.makers import ROOT
from pictures.scores import committed_scores
from tune_report.limits_plot import draw_limits
from tune_report.tracks import Track, tracks_of, write_tracks

FIGURES = ROOT / "benchmarks" / "results" / "tuning" / "figures.json"


@pytest.fixture(scope="module")
def kept() -> dict[str, Track]:
    seconds = [5.0 * tick for tick in range(1, 97)]
    return {
        "H100 ITL 50: step": [
            (at, 294, 1968, 45.603 if at > 10 else None, 16, 1) for at in seconds
        ],
        "H100 ITL 50: SLA change": [
            (at, 260, 1392, 33.0, 60, 0) if at >= 240 else (at, 350, 1720, 46.0, 60, 0)
            for at in seconds
        ],
    }


def test_what_is_kept_is_read_back_as_the_first_seeds(
    kept: dict[str, Track], tmp_path: Path
) -> None:
    write_tracks(kept, tmp_path / "tracks.json")

    found = tracks_of(committed_scores(FIGURES, tmp_path / "tracks.json"))

    assert {name: list(track) for name, track in found.items()} == kept


def test_limits_are_drawn_of_what_is_kept_alone(kept: dict[str, Track], tmp_path: Path) -> None:
    """A picture of no run would be empty: none is drawn."""
    write_tracks(kept, tmp_path / "tracks.json")

    draw_limits(committed_scores(FIGURES, tmp_path / "tracks.json"), tmp_path / "limits.png")
    draw_limits(committed_scores(FIGURES), tmp_path / "none.png")

    assert (tmp_path / "limits.png").stat().st_size > 10_000
    assert not (tmp_path / "none.png").exists()
