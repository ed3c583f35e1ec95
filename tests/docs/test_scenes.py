"""The figures beside the pictures of simulated scenes are those of the committed results."""

import re
from pathlib import Path

import msgspec

from scenes.batch_size import BatchScene
from scenes.bursts import BurstScene
from scenes.flood import FloodScene

ROOT = Path(__file__).parents[2]
SCENES = ROOT / "benchmarks" / "results" / "scenes"


def beside(page: str, picture: str) -> str:
    """Return the paragraph after a picture."""
    found = re.search(
        rf"{re.escape(picture)}\)\n\n(.+)\n", (ROOT / "docs" / page).read_text(encoding="utf-8")
    )
    assert found is not None, picture
    return found[1]


def test_bursts() -> None:
    scene = msgspec.json.decode((SCENES / "bursts.json").read_bytes(), type=BurstScene)
    text = beside("which-batching.md", "bursts.png")

    assert re.findall(r"\d+ %", text) == [f"{100 * each.in_time:.0f} %" for each in scene.tracks]


def test_flood() -> None:
    scene = msgspec.json.decode((SCENES / "flood.json").read_bytes(), type=FloodScene)
    without, lane = scene.tracks
    text = beside("lanes.md", "flood.png")

    for figure in (
        f"{lane.flooded_p99_ms:.0f} ms where the flood is in the batch lane",
        f"{without.flooded_p99_ms / 1e3:.0f} s where it says nothing",
        f"before it was {lane.calm_p99_ms:.0f} ms",
        f"after {lane.served_after_s:.0f} s in place of {without.served_after_s:.0f} s",
    ):
        assert figure in text


def test_a_batch_size_that_moves() -> None:
    scene = msgspec.json.decode((SCENES / "batch-size.json").read_bytes(), type=BatchScene)
    fixed, tuned = scene.tracks
    before = [b for t, b in zip(scene.at_s, tuned.batch_size, strict=True) if t <= scene.shift_s]
    text = beside("tuner.md", "tuned-live.png")

    assert f"finds {min(before)} sequences, and {tuned.batch_size[-1]} when" in text
    assert f"and {100 * fixed.good:.0f} % of the requests are within both targets" in text
    assert f"{100 * tuned.good:.0f} % are within" in text
    assert (
        f"{100 * tuned.refused:.0f} % are refused in place of {100 * fixed.refused:.0f} %" in text
    )
    late = [ms for t, ms in zip(scene.at_s, tuned.tpot_p99_ms, strict=True) if t > 120 and ms]
    assert max(late) <= scene.tpot_ms
