"""The measured points of a sweep, and where its knees are. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline_cli.bench.document import read_result
from paceline_cli.bench.grid import Axis, Setting
from paceline_cli.bench.intervals import Estimate
from paceline_cli.bench.measures import Measures
from paceline_tuner.service_spec import SLA

SWEEP_SCHEMA: Final = "paceline.dev/bench-sweep/v1"
_AS_GOOD: Final = 0.95
"""Of the best along the axis."""


@dataclass(frozen=True, slots=True)
class Point:
    """A setting and what was measured with it."""

    setting: Setting
    measured: Measures
    client_lagged: bool = False


@dataclass(frozen=True, slots=True)
class TunedPoint:
    """The tuner's own limits at the end of its phase, and what was measured with them."""

    batch_size: int
    token_budget: int
    step_target_ms: float | None
    phase: str
    measured: Measures
    client_lagged: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole run of `bench sweep`: every point, and the star, had the same requests."""

    schema: str
    name: str
    model: str
    machine: str
    device: str
    """What computed: the GPU's name, or the CPU."""
    sla: SLA
    note: str
    """What was served otherwise than the manifest says; empty where nothing was."""
    traffic: str
    """In words."""
    seed: int
    warmup: str
    points: tuple[Point, ...]
    chosen: TunedPoint | None
    """None where the tuner never spoke."""

    def along(self, axis: Axis) -> tuple[Point, ...]:
        """The points of one axis, ascending."""
        found = [point for point in self.points if point.setting.axis == axis]
        return tuple(sorted(found, key=lambda point: point.setting.place))

    def knee(self, axis: Axis) -> Point | None:
        """The smallest limit that is as good as the best: more of it brings nothing."""
        points = self.along(axis)
        best = max((worth(point.measured).value or 0.0 for point in points), default=0.0)
        enough = (p for p in points if (worth(p.measured).value or 0.0) >= _AS_GOOD * best)
        return next(enough, None) if best else None


def worth(measured: Measures) -> Estimate:
    """What a point brings: goodput in tokens; without targets, all tokens."""
    if measured.goodput_tokens_per_s.value is None:
        return measured.output_tokens_per_s
    return measured.goodput_tokens_per_s


def read_sweeps(paths: Sequence[Path]) -> tuple[Sweep, ...]:
    """Read other sweeps' `sweep.json`. Raises BadInputError."""
    return tuple(read_result(path, Sweep, SWEEP_SCHEMA) for path in paths)
