"""A reconciler whose parts are real, on a cluster in memory and a clock that tests move."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from paceline_operator.apply import Applier
from paceline_operator.extras import Extras
from paceline_operator.held_up import HeldUpPods
from paceline_operator.loading import LoadingPods
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Observer, Watched
from paceline_operator.reconcile import Reconciler
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_operator.token_key import TokenKey
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.silent_pods import SilentPods
from paceline_tuner.service_report import ServiceReport

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_AROUND: Final = Surroundings("engine:1", "sidecar:1", "paceline")
_NOTHING: Final[Mapping[str, ServiceReport]] = MappingProxyType({})


def a_reconciler(
    cluster: FakeCluster,
    clock: ManualClock,
    watched: Watched,
    *,
    around: Surroundings = _AROUND,
    reports: Mapping[str, ServiceReport] = _NOTHING,
) -> Reconciler:
    """Make one that leads, and remembers nothing."""
    applier = Applier(cluster, TokenKey(b"k" * 32), _lead, clock)
    return Reconciler(
        Observer(watched, reports, lambda: START + timedelta(seconds=clock.now)),
        applier,
        Extras(cluster, applier, clock),
        HeldUpPods(cluster, clock),
        LoadingPods(SilentPods(), clock),
        Reporter(cluster, Metrics(), _lead, clock, lambda: 30.0),
        around,
    )


async def _lead() -> None:
    """Hold the Lease."""
