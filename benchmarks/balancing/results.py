"""The results of the runs: one file for each fleet in benchmarks/results/balancing/."""

from pathlib import Path
from statistics import median
from typing import Final

import msgspec

RESULTS: Final = Path(__file__).parents[1] / "results" / "balancing"
ALIKE: Final = "alike"
MIXED: Final = "mixed"
"""The fleets, by the names of their files."""


class Run(msgspec.Struct, frozen=True):
    """One run; rates are per second of the whole fleet, shares are of the offered requests."""

    seed: int
    offered_rps: float
    attained: float
    goodput_rps: float
    ttft_p50_s: float
    ttft_p99_s: float
    """Of answered requests."""
    refused: float
    hits: float
    """Share of the prompt tokens that prefix caches held."""
    utilization: list[float]
    """λ/λ* of each pod."""


class Row(msgspec.Struct, frozen=True):
    """One policy at one load."""

    policy: str
    load: float
    """Share of the fleet's λ*."""
    runs: list[Run]

    def median(self, figure: str) -> float:
        """Return the median over seeds of one of the figures."""
        return median(self._values(figure))

    def ends(self, figure: str) -> tuple[float, float]:
        """Return its least and greatest value."""
        values = self._values(figure)
        return min(values), max(values)

    def used(self) -> tuple[float, float, float]:
        """Return λ/λ* of the pod that gets least, of the middle one and of the one that gets most.

        Each is the median over seeds.
        """
        each = [sorted(run.utilization) for run in self.runs]
        return (
            median(one[0] for one in each),
            median(median(one) for one in each),
            median(one[-1] for one in each),
        )

    def _values(self, figure: str) -> list[float]:
        return [getattr(run, figure) for run in self.runs]


class Part(msgspec.Struct, frozen=True):
    """Pods of a fleet that are alike."""

    device: str
    count: int
    capacity_rps: float
    """λ* of each."""
    max_batch_size: int
    token_budget: int


class Results(msgspec.Struct, frozen=True):
    """All runs of one fleet."""

    fleet: str
    parts: list[Part]
    rows: list[Row]

    def at(self, policy: str, load: float) -> Row:
        """Find a row."""
        return next(row for row in self.rows if (row.policy, row.load) == (policy, load))


def read(fleet: str, folder: Path = RESULTS) -> Results:
    """Read what `python -m balancing` wrote of a fleet."""
    return msgspec.json.decode((folder / f"{fleet}.json").read_bytes(), type=Results)


def write(results: Results, folder: Path = RESULTS) -> None:
    """Write it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (folder / f"{results.fleet}.json").write_bytes(content + b"\n")
