"""Play the scenes and write their results: PYTHONPATH=benchmarks python -m scenes."""

from pathlib import Path

import msgspec

from scenes.batch_size import batch_scene
from scenes.bursts import burst_scene
from scenes.flood import flood_scene

RESULTS = Path(__file__).parents[1] / "results" / "scenes"


def main() -> None:
    """Play."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    batch, flood, bursts = batch_scene(), flood_scene(), burst_scene()
    for name, scene in (("batch-size", batch), ("flood", flood), ("bursts", bursts)):
        path = RESULTS / f"{name}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(scene), indent=1) + b"\n")
        print(f"written: {path}")
    for each in batch.tracks:
        print(f"{each.arm}: {each.good:.1%} good, {each.refused:.1%} refused")
    for track in flood.tracks:
        print(
            f"{track.name}: TTFT p99 {track.calm_p99_ms:.0f} ms before, {track.flooded_p99_ms:.0f}"
            f" ms in the minute after; all served after {track.served_after_s:.0f} s"
        )
    for way in bursts.tracks:
        print(f"{way.name}: {way.in_time:.1%} in time, {way.padding:.0%} padding")


if __name__ == "__main__":
    main()
