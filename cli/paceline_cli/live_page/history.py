"""How a service did lately: one point of each tick of the tuner, and the changes of limits."""

from collections import deque

from paceline_cli.sla_targets import all_targets
from paceline_page.content import Point
from paceline_tuner.service_report import LimitsChange, ServiceReport
from paceline_tuner.service_spec import TuningSpec

_KEPT_POINTS = 180
"""A quarter of an hour at the default interval."""
_KEPT_CHANGES = 50


class Past:
    """Keeps the newest points and changes, so that a page that opens late has its charts."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=_KEPT_POINTS)
        self._changes: dict[tuple[float, str], LimitsChange] = {}

    @property
    def points(self) -> tuple[Point, ...]:
        """Every kept point, oldest first."""
        return tuple(self._points)

    @property
    def changes(self) -> tuple[LimitsChange, ...]:
        """Every kept change, oldest first."""
        return tuple(self._changes.values())

    def add(self, spec: TuningSpec, report: ServiceReport) -> None:
        """Take in one tick's conclusion."""
        for pod in report.pods:
            rows = all_targets(spec.sla, pod.observed)
            self._points.append(
                Point(
                    at=report.at,
                    latencies={name: value for name, _, value in rows},
                    batch_size=pod.batch_size,
                    token_budget=pod.token_budget,
                    running=pod.running,
                    waiting=pod.waiting,
                )
            )
        self._changes |= {(change.at, change.pod): change for change in reversed(report.history)}
        for oldest in list(self._changes)[:-_KEPT_CHANGES]:
            del self._changes[oldest]
