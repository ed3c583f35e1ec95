"""Faults between the operator and a real API server: each ends converged, with bounded calls.

One operator works through a proxy that does the faults. The last test starts another operator with
an empty memory, straight at the API server: if anything were not as rendered, it would write.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_api.labels import SERVICE_LABEL
from paceline_testing.api_proxy import (
    ApiProxy,
    Call,
    Fault,
    api_proxy,
    cut_body,
    end_at_once,
    garbage,
    lose_answer,
    on,
    refuse,
    slow,
)
from paceline_testing.operator_home import KINDS, Home
from paceline_testing.running_operator import running_operator
from paceline_testing.services import a_manifest
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.cluster

_NAMESPACE = "fault-tests"
_CHILDREN = 7
"""Of a service with one replica."""


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
        print(f"{what}: {len(calls)} calls: {counts}")  # noqa: T201 - shown with -s, or on failure
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
    # What it did is seen by the watch: it is not done again.
    "lost-answer": (lose_answer(), 1),
    "garbage": (garbage(), 3),
    "slow": (slow(2.0), 1),
}


def _made(service: str) -> Callable[[Call], bool]:
    """Match what makes or changes its Deployment; what is made has no name in its path."""
    made, changed = on("create", "deployments"), on("apply", "deployments", name=service)
    return lambda call: made(call) or changed(call)


@pytest.mark.parametrize("kind", _FAULTS)
def test_a_write_that_fails_is_done_again(faulty: Faulty, kind: str) -> None:
    """Once for each failure, and once more: nothing is asked for twice at the same time."""
    fault, times = _FAULTS[kind]
    begin = faulty.proxy.mark()

    with faulty.proxy.faulty(_made(kind), fault, times) as rule:
        faulty.home.apply(a_manifest(kind))
        faulty.home.until(lambda: rule.done == times)
        faulty.converged(kind)

    calls = faulty.told(kind, begin)
    applied = [call for call in calls if _made(kind)(call)]
    # A write that the controller's own write of the status overtakes is a conflict in earnest, and
    # what the watch brings after the next look is applied once more, without effect.
    assert times <= len(applied) <= 2 * times + 4
    if kind == "too-many":
        gaps = [after.at - before.at for before, after in pairwise(applied)][:times]
        assert min(gaps) >= 2.0


@pytest.mark.parametrize("kind", ["conflict", "lost-answer", "error"])
def test_a_change_that_fails_is_done_again(faulty: Faulty, kind: str) -> None:
    """Of a child that is there: taken over from its creation, then applied."""
    fault, times = _FAULTS[kind]
    name = f"{kind}-changed"
    faulty.home.serve(name)
    begin = faulty.proxy.mark()

    with faulty.proxy.faulty(on("apply", "deployments", name=name), fault, times) as rule:
        faulty.home.apply(a_manifest(name, podMetadata={"labels": {"changed": "yes"}}))
        faulty.home.until(lambda: rule.done == times)
        faulty.converged(name)
        template = ("spec", "template", "metadata", "labels", "changed")
        faulty.home.until(lambda: _at(faulty.home.get("deployment", name) or {}, template))

    calls = faulty.told(name, begin)
    applied = [call for call in calls if on("apply", "deployments", name=name)(call)]
    assert times <= len(applied) <= 2 * times + 6


def _at(found: Any, path: Sequence[str]) -> Any:
    for part in path:
        found = found.get(part, {})
    return found


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
    "watch-error": (_cut, {"watch": refuse(500, "etcdserver: no leader")}),
    "watch-many": (_cut, {"watch": refuse(429, "too many requests", headers=_LATER)}),
    "watch-forbidden": (_cut, {"watch": refuse(403, "not yet", reason="Forbidden")}),
    "list-gone": (_expired, {"list": refuse(410, "the continue token is too old")}),
    "list-error": (_expired, {"list": refuse(504, "timed out")}),
    "list-slow": (_expired, {"list": slow(3.0)}),
    "list-cut": (_expired, {"list": cut_body()}),
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
            stack.enter_context(proxy.faulty(_by_kopf(verb), fault, _WATCHED))
        begin_trouble(proxy)
        home.apply(a_manifest(kind))
        home.kubectl("scale", f"deployment/{kind}-old", "--replicas=5")
        faulty.converged(kind)
        home.until(lambda: (home.get("deployment", f"{kind}-old") or {})["spec"]["replicas"] == 1)
    home.kubectl("delete", f"service/{kind}-old")
    home.until(lambda: home.get("service", f"{kind}-old"))

    calls = [call for call in faulty.told(kind, begin) if "kopf" in call.client]
    assert len(calls) <= 10 * _WATCHED


def test_watches_that_are_ended_at_once_are_opened_now_and_then(faulty: Faulty) -> None:
    """A proxy that cannot stream ends each with 200 and nothing in it: no error, and no news."""
    home, proxy = faulty.home, faulty.proxy
    home.serve("short-old")
    begin, began, ended_s = proxy.mark(), time.monotonic(), 10.0

    with proxy.faulty(_by_kopf("watch"), end_at_once()):
        proxy.cut_watches()
        wait_until(lambda: time.monotonic() - began > ended_s, within_s=60)
        calls = [call for call in faulty.told("short", begin) if _by_kopf("watch")(call)]
    home.kubectl("delete", "service/short-old")
    home.until(lambda: home.get("service", "short-old"))

    # At once, then after 0.5, 1, 2 and 4 s.
    assert _WATCHED <= len(calls) <= 6 * _WATCHED
    assert home.operator.metric('paceline_operator_watch_pauses_total{resource="pods"}') >= 1


def _by_kopf(verb: str) -> Callable[[Call], bool]:
    """Match the requests of the watches, and not those of the probe."""
    return lambda call: call.verb == verb and bool(call.namespace) and "kopf" in call.client


def test_a_stale_list_takes_nothing_back(faulty: Faulty) -> None:
    """An API server that lags behind lists what is gone and misses what is there."""
    home, proxy = faulty.home, faulty.proxy
    home.serve("stale-gone")
    home.serve("stale-old")
    with proxy.faulty(_by_kopf("list"), slow(0.0)) as rule:
        _expired(proxy)
        home.until(lambda: rule.done >= _WATCHED)
    home.kubectl("delete", "pisvc/stale-gone")
    home.serve("stale-new")
    home.until(lambda: home.children("stale-gone") == {})
    begin = proxy.mark()

    with proxy.faulty(_by_kopf("list"), proxy.stale_list(), _WATCHED) as rule:
        _expired(proxy)
        home.until(lambda: rule.done >= _WATCHED)
    home.kubectl("delete", "service/stale-new", "service/stale-old")
    faulty.converged("stale-old")
    faulty.converged("stale-new")

    calls = faulty.told("stale", begin)
    made = [call for call in calls if call.is_write and call.name.startswith("stale-gone")]
    assert home.children("stale-gone") == {}
    assert made == []


def test_an_api_server_that_is_away_is_asked_now_and_then(faulty: Faulty) -> None:
    """Each watch backs off, the Lease is tried every 2 s, the probe every 15 s, and no more."""
    home, proxy = faulty.home, faulty.proxy
    away_s = 10.0
    home.serve("away-old")
    proxy.cut_watches()
    begin, began, starts = proxy.mark(), time.monotonic(), [*home.operator.starts]

    with proxy.faulty(lambda _: True, refuse(503, "shutting down")):
        proxy.cut_watches()
        home.apply(a_manifest("away"))
        wait_until(lambda: time.monotonic() - began > away_s, within_s=60)
        calls = faulty.told("away", begin)
    faulty.converged("away")

    # In 10 s a watch is tried 5 times: at once, then after 0.5, 1, 2 and 4 s. A service whose
    # write was under way backs off from 0.2 s on: 7 times at most, of the few that were.
    assert len(calls) <= 5 * _WATCHED + away_s / 2 + away_s / 15 + 3 * 7
    assert home.operator.starts == starts


@pytest.mark.parametrize("kind", ["policy", "webhook", "quota", "pod-quota"])
def test_a_refusal_is_said_and_ends_with_its_cause(faulty: Faulty, kind: str) -> None:
    """Admission refuses, or is down, or the quota is used up; a real API server says so."""
    home = faulty.home
    reason, words, cause = _CAUSES[kind]
    begin = faulty.proxy.mark()

    home.kubectl("apply", "-f", "-", input=json.dumps(cause))
    try:
        if kind in {"policy", "webhook"}:
            _wait_until_refused(home)
        home.apply(a_manifest(kind, podMetadata={"labels": {"refused": "yes"}}))
        home.until(lambda: home.condition(kind, "WorkloadAvailable").get("reason") == reason)
        home.until(lambda: words in home.condition(kind, "WorkloadAvailable")["message"])
        assert home.condition(kind, "Ready")["status"] == "False"
    finally:
        home.kubectl("delete", "-f", "-", input=json.dumps(cause))
    faulty.converged(kind)

    calls = faulty.told(kind, begin)
    seconds = calls[-1].at - calls[0].at
    writes = [call for call in calls if call.is_write and call.resource == "deployments"]
    # Each pause is twice the one before, from 0.2 s on, up to a minute; news of what the refusal
    # itself caused (the other children, two statuses) may add a try each.
    assert len(writes) <= math.log2(seconds / 0.2) + _CHILDREN + 2


_RULE = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"]}
_DEPLOYMENTS = _RULE | {"resources": ["deployments"]}
_HERE = {"matchLabels": {"kubernetes.io/metadata.name": _NAMESPACE}}
_ADMISSION = "admissionregistration.k8s.io/v1"
_POLICY = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": _ADMISSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "no-refused"},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [_DEPLOYMENTS]},
                "validations": [
                    {
                        "expression": "!('refused' in object.spec.template.metadata.labels)",
                        "message": "the platform team says no",
                    }
                ],
            },
        },
        {
            "apiVersion": _ADMISSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "no-refused"},
            "spec": {
                "policyName": "no-refused",
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": _HERE},
            },
        },
    ],
}
_WEBHOOK = {
    "apiVersion": _ADMISSION,
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "nobody-there"},
    "webhooks": [
        {
            "name": "nobody.paceline.test",
            "rules": [_DEPLOYMENTS],
            "clientConfig": {"url": "https://127.0.0.1:1/judge"},
            "namespaceSelector": _HERE,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 1,
        }
    ],
}


def _quota(kind: str, resource: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": kind, "namespace": _NAMESPACE},
        "spec": {"hard": {resource: "0"}},
    }


_CAUSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "policy": ("RolloutBlocked", "the platform team says no", _POLICY),
    "webhook": ("Progressing", "failed calling webhook", _WEBHOOK),
    "quota": ("RolloutBlocked", "exceeded quota", _quota("quota", "count/deployments.apps")),
    "pod-quota": ("RolloutBlocked", "exceeded quota", _quota("pod-quota", "pods")),
}


def _wait_until_refused(home: Home) -> None:
    """The API server takes a moment to know a new admission rule."""
    probe = json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "probe"},
            "spec": {
                "selector": {"matchLabels": {"refused": "yes"}},
                "template": {
                    "metadata": {"labels": {"refused": "yes"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        }
    )
    trial = ("-n", home.namespace, "create", "--dry-run=server", "-f", "-")
    home.until(lambda: home.cluster.try_kubectl(*trial, input=probe).returncode != 0)


def test_afterwards_everything_is_as_rendered(
    faulty: Faulty, control_plane: Cluster, tmp_path: Path
) -> None:
    """Another operator, with an empty memory and no faults, finds nothing to write."""
    home = faulty.home
    end_of = {"PACELINE_OPERATOR_LEASE_NAME": "afterwards"}
    services = json.loads(home.kubectl("get", "pisvc", "-o", "json"))["items"]
    os.kill(home.operator.pid, signal.SIGSTOP)
    try:
        before = _versions(home)
        with running_operator(control_plane, _NAMESPACE, tmp_path, settings=end_of) as another:
            reconciles = 'paceline_operator_reconcile_total{result="ok"}'
            home.until(lambda: another.metric(reconciles) >= 2 * len(services))
            writes = another.metric("paceline_operator_status_writes_total")
        assert _versions(home) == before
        assert writes == 0
    finally:
        os.kill(home.operator.pid, signal.SIGCONT)


def _versions(home: Home) -> dict[str, str]:
    """Every service and its children; the keys of an operator of another name are no child."""
    listed = (("get", "pisvc"), ("get", KINDS, "-l", SERVICE_LABEL))
    found = [
        one for what in listed for one in json.loads(home.kubectl(*what, "-o", "json"))["items"]
    ]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in found
    }
