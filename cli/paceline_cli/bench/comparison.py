"""What `bench compare` found, as it is written and read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline_cli.bench.document import read_result
from paceline_cli.bench.measures import Measures
from paceline_cli.bench.run_plots import moving_p99, of
from paceline_cli.bench.trial import Trial
from paceline_tuner.service_spec import SLA

COMPARE_SCHEMA: Final = "paceline.dev/bench-compare/v1"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One way of batching under one load: what clients saw, and what the engine computed."""

    arm: str
    load: float
    """Multiple of the rate."""
    measured: Measures
    padding_tokens: int
    """Computed only to fill batches up, warm-up included."""
    useful_tokens: int
    """Prompt tokens computed and tokens generated."""
    client_lagged: bool = False

    @property
    def padding_share(self) -> float:
        """Padding's share of all computed tokens."""
        return self.padding_tokens / max(1, self.padding_tokens + self.useful_tokens)


@dataclass(frozen=True, slots=True)
class Series:
    """The moving p99s of one trial, for the plot."""

    arm: str
    load: float
    by_name: dict[str, tuple[list[float], list[float | None]]]
    """Seconds and milliseconds of TTFT and ITL: infinite where requests had no answer, None where
    none was due."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole run of `bench compare`."""

    schema: str
    model: str
    machine: str
    sla: SLA
    note: str
    traffic: str
    """At a load of 1, in words."""
    seed: int
    warmup: str
    arms: dict[str, str]
    """What each way of batching does."""
    found: tuple[ArmResult, ...]
    series: tuple[Series, ...]


def series_of(arm: str, load: float, trial: Trial) -> Series:
    """Read the moving p99s of what was measured."""
    counted = [
        one
        for one in trial.records
        if trial.start_at <= one.planned_at < trial.end_at and one.outcome != "cancelled"
    ]
    by_name = {}
    for name in ("TTFT", "ITL"):
        points = [(one.planned_at - trial.start_at, ms) for one in counted for ms in of(name, one)]
        by_name[name] = moving_p99(points, trial.end_at - trial.start_at)
    return Series(arm, load, by_name)


def read_comparison(path: Path) -> Comparison:
    """Read what `compare` wrote. Raises BadInputError."""
    return read_result(path, Comparison, COMPARE_SCHEMA)
