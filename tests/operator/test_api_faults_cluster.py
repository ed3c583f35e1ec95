"""Faults between the operator and a real API server: each ends converged, with bounded calls.

One operator works through a proxy that does the faults. The last test starts another operator with
an empty memory, straight at the API server: if anything were not as rendered, it would write.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.api_proxy import (
    ApiProxy,
    Call,
    Fault,
    api_proxy,
    garbage,
    lose_answer,
    on,
    refuse,
    slow,
)
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster

_NAMESPACE = "fault-tests"
_CHILDREN = 6
"""Of a service with one replica."""
# What a reconcile reads before it makes children: each child, the Secret, and the service itself.
_READS = _CHILDREN + 2


@dataclass(frozen=True, slots=True)
class Faulty:
    """A home whose operator works through a proxy."""

    home: Home
    proxy: ApiProxy

    def converged(self, name: str) -> None:
        """Wait for the children and for a status that speaks of them."""
        self.home.until(lambda: len(self.home.children(name)) == _CHILDREN)
        self.home.until(lambda: self.home.reported(name))
        self.home.until(lambda: self._says(name, "Stalled", "False"))

    def _says(self, name: str, kind: str, status: str) -> bool:
        return bool(self.home.condition(name, kind).get("status") == status)

    def told(self, what: str, since: int) -> list[Call]:
        """Print what was asked meanwhile, and return it."""
        calls = self.proxy.calls[since:]
        counts = ", ".join(f"{n} {key}" for key, n in sorted(self.proxy.counted(since).items()))
        print(f"{what}: {len(calls)} calls: {counts}")
        return calls


@pytest.fixture(scope="module")
def faulty(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("faults")
    with api_proxy(control_plane.kubeconfig, folder) as proxy:
        through = {"KUBECONFIG": str(proxy.kubeconfig)}
        with running_operator(control_plane, _NAMESPACE, folder, settings=through) as operator:
            yield Faulty(Home(control_plane, _NAMESPACE, operator), proxy)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


_LATER = {"Retry-After": "2"}
_FAULTS: dict[str, tuple[Fault, int]] = {
    "conflict": (refuse(409, "the object has been modified", reason="Conflict"), 3),
    "too-many": (refuse(429, "too many requests", headers=_LATER), 3),
    "error": (refuse(500, "etcdserver: leader changed"), 4),
    "unavailable": (refuse(503, "the server is currently unable to handle the request"), 4),
    "lost-answer": (lose_answer(), 3),
    "garbage": (garbage(), 3),
    "slow": (slow(2.0), 1),
}


@pytest.mark.parametrize("kind", _FAULTS)
def test_a_write_that_fails_is_done_again(faulty: Faulty, kind: str) -> None:
    """Once for each failure, and once more: nothing is asked for twice at the same time."""
    fault, times = _FAULTS[kind]
    begin = faulty.proxy.mark()

    with faulty.proxy.faulty(on("apply", "deployments", name=kind), fault, times) as rule:
        faulty.home.apply(a_manifest(kind))
        faulty.home.until(lambda: rule.done == times)
        faulty.converged(kind)

    calls = faulty.told(kind, begin)
    applied = [call for call in calls if on("apply", "deployments", name=kind)(call)]
    # The watch may bring a child after the next look: it is applied once more, without effect.
    assert times <= len(applied) <= times + 2
    if kind == "too-many":
        gaps = [b.at - a.at for a, b in zip(applied, applied[1:], strict=False)][:times]
        assert min(gaps) >= 2.0


def _expired(proxy: ApiProxy) -> None:
    proxy.cut_watches(error={"code": 410, "reason": "Expired", "message": "too old"})


def _broken(proxy: ApiProxy) -> None:
    proxy.cut_watches(error={"code": 500, "reason": "InternalError", "message": "no leader"})


_WATCHED = 8
"""Kinds that the operator watches."""


def _cut(proxy: ApiProxy) -> None:
    proxy.cut_watches()


_TROUBLES: dict[str, tuple[Callable[[ApiProxy], None], dict[str, Fault]]] = {
    "cut": (_cut, {}),
    "expired": (_expired, {}),
    "broken": (_broken, {}),
    "watch-gone": (_cut, {"watch": refuse(410, "too old resource version", reason="Expired")}),
    "watch-error": (_cut, {"watch": refuse(500, "etcdserver: no leader")}),
    "watch-many": (_cut, {"watch": refuse(429, "too many requests", headers=_LATER)}),
    "watch-forbidden": (_cut, {"watch": refuse(403, "not yet", reason="Forbidden")}),
    "list-gone": (_expired, {"list": refuse(410, "the continue token is too old")}),
    "list-error": (_expired, {"list": refuse(504, "timed out")}),
    "list-slow": (_expired, {"list": slow(3.0)}),
    "list-garbage": (_expired, {"list": garbage()}),
}


@pytest.mark.parametrize("kind", _TROUBLES)
def test_a_watch_in_trouble_hears_again(faulty: Faulty, kind: str) -> None:
    """What was made and changed meanwhile is brought in order, and lists stay few."""
    begin_trouble, faults = _TROUBLES[kind]
    home, proxy = faulty.home, faulty.proxy
    home.serve(f"{kind}-old")
    begin = proxy.mark()

    with ExitStack() as stack:
        for verb, fault in faults.items():
            stack.enter_context(proxy.faulty(_by_kopf(verb), fault, 2 * _WATCHED))
        begin_trouble(proxy)
        home.apply(a_manifest(kind))
        home.kubectl("scale", f"deployment/{kind}-old", "--replicas=5")
        faulty.converged(kind)
        home.until(lambda: (home.get("deployment", f"{kind}-old") or {})["spec"]["replicas"] == 1)
    home.kubectl("delete", f"service/{kind}-old")
    home.until(lambda: home.get("service", f"{kind}-old"))

    calls = [call for call in faulty.told(kind, begin) if "kopf" in call.client]
    assert len(calls) <= 10 * _WATCHED


def _by_kopf(verb: str) -> Callable[[Call], bool]:
    """Match the requests of the watches, and not those of the probe."""
    return lambda call: call.verb == verb and bool(call.namespace) and "kopf" in call.client
