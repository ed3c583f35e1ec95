"""The committed sweep and comparison are read by this version, and say what the docs say."""

from pathlib import Path

from paceline_cli.bench.comparison import read_comparison
from paceline_cli.bench.sweep_points import read_sweeps

RESULTS = Path(__file__).parents[3] / "benchmarks/results/cpu"


def test_the_sweep_has_every_batch_size_a_knee_and_the_tuner() -> None:
    """With enough requests at each point for a p99 with its interval."""
    (sweep,) = read_sweeps([RESULTS / "sweep.json"])
    knee = sweep.knee("batch_size")

    assert [each.setting.batch_size for each in sweep.along("batch_size")] == [
        *(1, 2, 4, 8, 16, 32, 64)
    ]
    assert all(each.measured.ttft.at(0.99).has_bound for each in sweep.points)
    assert knee is not None
    assert knee.setting.batch_size == 8
    assert sweep.chosen is not None
    assert sweep.chosen.measured.offered == knee.measured.offered


def test_the_comparison_has_every_way_of_batching_at_every_load() -> None:
    """And the p99s over time of each."""
    comparison = read_comparison(RESULTS / "compare.json")

    loads = sorted({each.load for each in comparison.found})
    assert len(comparison.arms) == 5
    assert len(loads) > 1
    assert [(each.arm, each.load) for each in comparison.found] == [
        (arm, load) for arm in comparison.arms for load in loads
    ]
    assert len(comparison.series) == len(comparison.found)
