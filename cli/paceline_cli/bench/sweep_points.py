"""The measured points of a sweep. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from paceline_cli.bench.grid import Axis, Setting
from paceline_cli.traffic.client_span import span
from paceline_cli.traffic.record import ClientRecord, percentile
from paceline_tuner.service_spec import SLA

SHARES: Final = (0.5, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of `count` values, milliseconds; infinite where too many had no answer."""

    share: float
    ms: float | None
    """None without values."""
    count: int

    @property
    def is_max(self) -> bool:
        """Too few values for this rank: it is their maximum."""
        return self.count < least_count(self.share)


@dataclass(frozen=True, slots=True)
class ClientMeasures:
    """What the client saw under one setting."""

    offered: int
    missed: int
    """Refused, failed or without an end in time: their TTFT and E2E count as infinite."""
    tokens_per_s: float
    ttft: tuple[Percentile, ...]
    tpot: tuple[Percentile, ...]
    itl: tuple[Percentile, ...]
    e2e: tuple[Percentile, ...]

    def latencies(self) -> tuple[tuple[str, tuple[Percentile, ...]], ...]:
        """Return all of them by name."""
        return (("TTFT", self.ttft), ("TPOT", self.tpot), ("ITL", self.itl), ("E2E", self.e2e))


@dataclass(frozen=True, slots=True)
class Point:
    """A setting and what was measured with it."""

    setting: Setting
    measured: ClientMeasures


@dataclass(frozen=True, slots=True)
class TunedPoint:
    """The tuner's own limits at the end of its phase, and what was measured with them."""

    batch_size: int
    token_budget: int
    step_target_ms: float | None
    phase: str
    measured: ClientMeasures


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole run of `bench sweep`."""

    name: str
    model: str
    machine: str
    sla: SLA
    note: str
    """Why other targets were declared than the manifest's; empty where they were not."""
    rate_rps: float
    cv: float
    seconds: float
    """Length of the arrivals at each point."""
    points: tuple[Point, ...]
    chosen: TunedPoint | None
    """None where the tuner never spoke."""

    def along(self, axis: Axis) -> tuple[Point, ...]:
        """The points of one axis, ascending."""
        found = [point for point in self.points if point.setting.axis == axis]
        return tuple(sorted(found, key=lambda point: point.setting.place))


def measure(records: Sequence[ClientRecord], start_at: float, end_at: float) -> ClientMeasures:
    """Read what was due in [start_at, end_at), client's monotonic seconds."""
    seen = span(records, start_at, end_at)
    return ClientMeasures(
        offered=seen.offered,
        missed=seen.missed,
        tokens_per_s=seen.output_tokens / seen.seconds,
        ttft=percentiles(seen.ttft_ms),
        tpot=percentiles(seen.tpot_ms),
        itl=percentiles(seen.itl_ms),
        e2e=percentiles([_whole_ms(record) for record in seen.due]),
    )


def percentiles(values_ms: Sequence[float]) -> tuple[Percentile, ...]:
    """The shares of SHARES; a rank that lies beyond the values gives their maximum."""
    return tuple(
        Percentile(share, percentile(values_ms, share), len(values_ms)) for share in SHARES
    )


def least_count(share: float) -> int:
    """How many values a percentile needs to differ from their maximum: 100 for P99."""
    return round(1 / (1 - share))


def label(share: float) -> str:
    """Name a percentile: `P50`, `P99.9`."""
    return f"P{share * 100:g}"


def _whole_ms(record: ClientRecord) -> float:
    return (record.finished_at - record.planned_at) * 1e3 if record.outcome == "ok" else math.inf
