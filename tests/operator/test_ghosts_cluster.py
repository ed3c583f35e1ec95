"""What vanishes while a watch begins anew is never told of: the operator must not believe in it.

A real operator, a real API server, and a proxy between them that answers 410 on watches and holds
the lists after it until things have vanished. Kopf keeps them in its indexes for ever.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.api_proxy import ApiProxy, Call, Match, api_proxy, hold, on
from paceline_testing.kubelet import bind, make_ready, pod_of, remove
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator

pytestmark = pytest.mark.cluster

_NAMESPACE = "ghost-tests"
_CHILDREN = 7
"""Of a service with one replica."""
# A list of children every 8 s, and illness after 16 s: each a seventh or so of what is usual.
_SETTINGS = {"PACELINE_OPERATOR_WATCH_PROBE_S": "2"}
_EXPIRED = {"code": 410, "reason": "Expired", "message": "too old resource version"}


@dataclass(frozen=True, slots=True)
class Haunted:
    """A home whose operator can be made deaf to what vanishes."""

    home: Home
    proxy: ApiProxy

    @contextmanager
    def deaf(self, *resources: str) -> Iterator[None]:
        """Answer 410 on these watches, and list anew only after the body."""
        heard = threading.Event()
        with ExitStack() as stack:
            stack.callback(heard.set)
            rules = [
                stack.enter_context(self.proxy.faulty(_lists(resource), hold(heard)))
                for resource in resources
            ]
            for resource in resources:
                assert self.proxy.cut_watches(resource, error=_EXPIRED)
            self.home.until(lambda: all(rule.done for rule in rules))
            yield
            lists = [len(self._watched(resource)) for resource in resources]
            heard.set()
            # A watch follows each list once it was answered.
            self.home.until(
                lambda: all(
                    len(self._watched(resource)) > before
                    for resource, before in zip(resources, lists, strict=True)
                )
            )

    def _watched(self, resource: str) -> list[Call]:
        calls = [*self.proxy.calls]
        return [call for call in calls if (call.verb, call.resource) == ("watch", resource)]


def _lists(resource: str) -> Match:
    """Match the lists of kopf; those of the probe go on."""
    return lambda call: (call.verb, call.resource) == ("list", resource) and "kopf" in call.client


def _services(home: Home) -> set[str]:
    """Name the Services that are there."""
    return {*home.kubectl("get", "services", "-o", "jsonpath={.items[*].metadata.name}").split()}


@pytest.fixture(scope="module")
def haunted(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Haunted]:
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder: Path = tmp_path_factory.mktemp("ghosts")
    with api_proxy(control_plane.kubeconfig, folder) as proxy:
        settings = {"KUBECONFIG": str(proxy.kubeconfig), **_SETTINGS}
        with running_operator(
            control_plane, _NAMESPACE, folder, is_probed=True, settings=settings
        ) as operator:
            yield Haunted(Home(control_plane, _NAMESPACE, operator), proxy)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def test_what_has_vanished_is_not_believed_in(haunted: Haunted) -> None:
    """A service, whose children's ends are heard; a child; and the only ready pod of a service."""
    home, proxy = haunted.home, haunted.proxy
    for name in ("gone", "hurt", "bereft"):
        home.serve(name)
    home.until(lambda: {"gone", "hurt"} <= _services(home))
    pod = str(home.until(lambda: pod_of(home.cluster, _NAMESPACE, "bereft")))
    bind(home.cluster, _NAMESPACE, pod)
    make_ready(home.cluster, _NAMESPACE, pod)
    home.until(lambda: home.condition("bereft", "Ready").get("status") == "True")
    begin, num_starts = proxy.mark(), len(home.operator.starts)

    with haunted.deaf("inferenceservices", "services", "pods"):
        # The Deployment's end is heard: it would be made anew, and collected, for ever.
        # Kubernetes may have collected it before it is our turn.
        ends = ("pisvc/gone", "deployment/gone", "service/hurt")
        home.kubectl("delete", "--ignore-not-found", *ends)
        remove(home.cluster, _NAMESPACE, pod)
        looked = on("get", "inferenceservices", name="gone")
        home.until(lambda: any(map(looked, proxy.calls[begin:])))
        home.until(lambda: home.children("gone") == {})
    home.until(lambda: len(home.operator.starts) > num_starts)

    home.until(lambda: home.get("service", "hurt"))
    home.until(lambda: home.condition("bereft", "Ready").get("status") == "False")
    calls = [call for call in proxy.calls[begin:] if call.name.startswith("gone")]
    print(f"calls for a service that has vanished: {len(calls)}")  # noqa: T201 - shown with -s
    assert home.children("gone") == {}
    made = [call for call in calls if call.is_write and call.resource != "inferenceservices/status"]
    assert made == []
    # Each of its children that ends is a reason to look for it and for the service.
    assert len(calls) <= 4 * _CHILDREN
