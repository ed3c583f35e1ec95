"""Finds in the API server's audit log which of Kubernetes' own parts watch it. Pure.

A part whose watch the API server's end has cut asks for another after a pause that doubles with
each try, up to half a minute. Until then it acts on what was: kube-proxy leads connections to pods
that are gone, and the controllers do not take them out of the Service.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# On the way from a container's end to the node's rules, and from a pod's end to its successor.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "kube-controller-manager": (
        "deployments",
        "replicasets",
        "pods",
        "services",
        "endpointslices",
        "nodes",
        "leases",
    ),
    "kube-scheduler": ("nodes", "pods"),
    "kubelet": ("pods",),
    "kube-proxy": ("services", "endpointslices"),
}
_USERS: Final[Mapping[str, str]] = {
    "system:kube-controller-manager": "kube-controller-manager",
    "system:kube-scheduler": "kube-scheduler",
    "system:node:n1": "kubelet",
    "system:kube-proxy": "kube-proxy",
}


@dataclass(slots=True)
class Watches:
    """The watches that are open, read from the log bit by bit."""

    _open: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Part and resource, by the id of the request."""
    _unfinished: str = ""

    def take(self, text: str) -> None:
        """Read on; the last line may be half written."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for request, stage, watch in _watches(lines):
            if stage == "ResponseStarted":
                self._open[request] = watch
            else:
                self._open.pop(request, None)

    def lose_all(self) -> None:
        """Forget what was open when the API server ended: one that is killed does not log it."""
        self._open.clear()
        self._unfinished = ""

    def missing(self) -> str:
        """Name the first part that does not hear yet; empty when all do."""
        is_open = {*self._open.values()}
        lacks = (
            f"{part} does not watch {resource}"
            for part, resources in _NEEDED.items()
            for resource in resources
            if (part, resource) not in is_open
        )
        return next(lacks, "")


def _watches(lines: Iterable[str]) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield id, stage, part and resource of each event of a watch that was not refused."""
    for line in lines:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # empty, or of a stopped API server
        part = _USERS.get(event["user"]["username"])
        code = event.get("responseStatus", {}).get("code", 200)
        is_watch = part is not None and event["verb"] == "watch" and code < 300
        if part is not None and is_watch:
            yield event["auditID"], event["stage"], (part, event["objectRef"]["resource"])
