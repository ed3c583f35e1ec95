"""Pods go under load: with notice no request fails, and without it no more than the pods had.

Real are the control plane, its evictions and budgets, the operator, and each pod's sidecar,
scheduler and pacer. Pods are processes (`paceline_testing.process_node`), whose devices only take
time; clients choose among the ready pods as a Service does, and never ask twice. Whether the p99
was within the SLA is printed, with -s: it depends on the machine.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Event, Thread
from typing import Any, Final

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.eviction import evict
from paceline_testing.operator_home import Home
from paceline_testing.process_node import ProcessNode, process_node
from paceline_testing.running_operator import running_operator
from paceline_testing.services import a_manifest
from paceline_testing.spread_traffic import Answer, SpreadTraffic, spread_traffic
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.drain, pytest.mark.timeout(900, func_only=True)]

_NAMESPACE: Final = "disruption"
_NAME: Final = "steady"
_REPLICAS: Final = 4
_NOTICE_S: Final = 30
"""Of a spot machine."""
_DRAIN_S: Final = 15
"""Of the service: with what comes before and after, less than the notice."""
_TTFT_S, _GAP_S = 1.0, 0.4
_WITHIN_S: Final = 480.0
_ZONE: Final = "topology.kubernetes.io/zone"
_AFTERWARDS: Final = 40
"""Requests that must be answered after all is calm again."""
_SPEC: Final[dict[str, Any]] = {
    "engine": {"capacity": {"maxBatchSize": 8, "maxTokenBudget": 256}},
    "sla": {"ttft": {"p99": f"{_TTFT_S:g}s"}, "itl": {"p99": f"{1000 * _GAP_S:g}ms"}},
    # A machine that is slow for other reasons would refuse whom it cannot serve in time, and which
    # requests a leaving pod costs could not be told.
    "admission": {"shedHopeless": False},
    "replicas": _REPLICAS,
    "resources": {"gpu": {"count": 0}},
    "rollout": {"drainSeconds": _DRAIN_S},
    "network": {"policy": "None"},
}


@dataclass(frozen=True, slots=True)
class Steady:
    """The service, its node and its clients."""

    home: Home
    node: ProcessNode

    def apply(self, **changes: Any) -> None:
        self.home.apply(a_manifest(_NAME, **(_SPEC | changes)))

    def pods(self, *labels: str) -> list[str]:
        """Name the pods that stay and have these labels."""
        selector = ",".join([f"serving.paceline.dev/service={_NAME}", *labels])
        found = json.loads(self.home.kubectl("get", "pods", "-l", selector, "-ojson"))["items"]
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(str(pod["metadata"]["name"]) for pod in staying)

    def urls(self) -> list[str]:
        return self.node.serving(_NAMESPACE, _NAME)

    def serves(self) -> bool:
        """Whether the pods of the present spec serve, and those before are gone."""
        status = (self.home.get("pisvc", _NAME) or {}).get("status", {})
        is_all = status.get("updatedReplicas") == status.get("readyReplicas") == _REPLICAS
        is_reported = self.home.reported(_NAME)
        return is_all and is_reported and len(self.node.pods) == len(self.urls()) == _REPLICAS

    @contextmanager
    def load(self, what: str) -> Iterator[SpreadTraffic]:
        """Five requests a second until it has been calm for a while; print what became of them."""
        with spread_traffic(_NAME, self.urls, rate_rps=5.0, max_tokens=16) as traffic:
            began = time.monotonic()
            yield traffic
            wait_until(self.serves, within_s=_WITHIN_S, every_s=0.5)
            took_s = time.monotonic() - began
            so_far = len(traffic.answers)
            wait_until(lambda: len(traffic.answers) >= so_far + _AFTERWARDS, within_s=_WITHIN_S)
        print(f"\n{_row(what, traffic.answers, took_s)}")  # noqa: T201 - shown with -s


def _row(what: str, answers: list[Answer], took_s: float) -> str:
    """One line of the table in docs/disruption.md."""
    endings = [answer.ending for answer in answers]
    ttft = _p99([answer.ttft_s for answer in answers if answer.ttft_s is not None])
    gap = _p99([answer.gap_s for answer in answers])
    kept = "kept" if ttft <= _TTFT_S and gap <= _GAP_S else "missed"
    return (
        f"| {what} | {took_s:.0f} s | {len(answers)} | {endings.count('told')}"
        f" | {endings.count('cut')} | {1000 * ttft:.0f} ms | {1000 * gap:.0f} ms | {kept} |"
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[-1 - len(values) // 100]


def _none_failed(traffic: SpreadTraffic) -> None:
    assert [answer for answer in traffic.answers if answer.ending != "whole"] == []


@pytest.fixture(scope="module")
def steady(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steady]:
    """Four pods that serve."""
    folder = tmp_path_factory.mktemp("disruption")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "crds")
    cluster.kubectl("wait", "--for=condition=Established", "-f", "crds")
    cluster.kubectl("create", "namespace", _NAMESPACE)
    with (
        process_node(cluster, folder) as node,
        running_operator(cluster, _NAMESPACE, folder) as operator,
    ):
        service = Steady(Home(cluster, _NAMESPACE, operator), node)
        service.apply()
        wait_until(service.serves, within_s=_WITHIN_S, every_s=0.5)
        yield service
    cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def _evict(steady: Steady, name: str, *, grace_s: int | None = None) -> None:
    go: Callable[[], bool] = partial(evict, steady.home.cluster, name, _NAMESPACE, grace_s=grace_s)
    wait_until(go, within_s=_WITHIN_S, every_s=0.5)


def test_every_pod_is_evicted(steady: Steady) -> None:
    """As drains of nodes would do: the budget refuses the next until another is ready.

    The next is asked for while the pod that replaces the one before cannot have started.
    """
    before = steady.pods()
    are_refused = []

    with steady.load("every pod evicted in turn") as traffic:
        for name, following in pairwise(before):
            wait_until(lambda: len(steady.pods()) == _REPLICAS, within_s=_WITHIN_S, every_s=0.5)
            with steady.node.starting_only(steady.pods()):
                _evict(steady, name)
                are_refused.append(not evict(steady.home.cluster, following, _NAMESPACE))
        _evict(steady, before[-1])

    assert are_refused == [True] * (_REPLICAS - 1)
    assert not {*before} & {*steady.pods()}
    _none_failed(traffic)


def test_a_notice_of_thirty_seconds(steady: Steady) -> None:
    """The pod has drained before its machine goes."""
    steady.node.overstayed.clear()
    gone = steady.pods()[0]

    with steady.load("a spot machine's notice of 30 s") as traffic:
        _evict(steady, gone, grace_s=_NOTICE_S)

    assert steady.node.overstayed == []
    _none_failed(traffic)


def test_a_rolling_change_of_the_model(steady: Steady) -> None:
    """Each pod of the old model drains once one of the new model is ready."""
    before = steady.pods()

    with steady.load("a rolling change of the model") as traffic:
        steady.apply(model={"uri": "file:///models/next"})
        wait_until(lambda: not {*before} & {*steady.pods()}, within_s=_WITHIN_S, every_s=0.5)

    _none_failed(traffic)


def test_the_zone_of_half_of_the_pods_is_lost(steady: Steady) -> None:
    """At once and without a word: what they had is cut, and nothing else.

    The one node has no zone, so the pods are labelled here as those of two zones are.
    """
    for place, name in enumerate(steady.pods()):
        steady.home.kubectl("label", "pod", name, f"{_ZONE}={'lost' if place % 2 else 'kept'}")
    lost = steady.pods(f"{_ZONE}=lost")

    with steady.load("half of the pods killed at once") as traffic:
        wait_until(lambda: traffic.asking, within_s=_WITHIN_S)
        asking = [*traffic.asking]
        urls = steady.node.lose(lost)
        at_most = sum(url in urls for url in (*asking, *traffic.asking))
        steady.home.kubectl("delete", "pod", *lost, "--force", "--grace-period=0")

    assert len(lost) == _REPLICAS // 2
    failed = [answer for answer in traffic.answers if answer.ending != "whole"]
    assert {answer.url for answer in failed} <= {*urls}
    assert len(failed) <= at_most


def test_what_a_notice_is_too_short_for_is_told_so(steady: Steady) -> None:
    """Answers that take longer than the drain: an error that says so, no cut connection."""
    steady.node.overstayed.clear()
    steady.node.slowdown.write_text("4")  # 400 tokens take 40 s
    (gone,) = steady.pods()[:1]
    (url,) = [
        f"http://{pod.address}:8000"
        for pod in steady.node.pods.values()
        if pod.manifest["metadata"]["name"] == gone
    ]
    long = SpreadTraffic(_NAME, lambda: [url], rate_rps=2.0, max_tokens=400)
    is_over = Event()
    thread = Thread(target=lambda: asyncio.run(long.send(is_over)), name="long", daemon=True)
    thread.start()
    try:
        wait_until(lambda: len(long.asking) >= 4, within_s=_WITHIN_S)
        is_over.set()
        _evict(steady, gone, grace_s=_NOTICE_S)
        thread.join(_WITHIN_S)
        wait_until(steady.serves, within_s=_WITHIN_S, every_s=0.5)
    finally:
        is_over.set()
        steady.node.slowdown.unlink()

    assert steady.node.overstayed == []
    assert {answer.ending for answer in long.answers} == {"told"}
    assert all("went away before the answer was complete" in each.said for each in long.answers)
