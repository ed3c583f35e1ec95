"""Clocks that are wrong: a rival's, and the API server's. Leadership goes by our own alone."""

import json
from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.api_proxy import api_proxy, on
from paceline_testing.running_operator import eventually, running_operator
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.cluster

_NAMESPACE = "clock-tests"
_LONG_AGO = "1999-12-31T23:59:{:02d}.000000Z"
_RENEWALS = 5


def test_a_rival_whose_clock_is_wrong_is_believed_while_it_renews(
    control_plane: Cluster, tmp_path: Path
) -> None:
    """Its times of renewal are decades old, yet they change: it leads, until it renews no more."""
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)

    def renew(second: int) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "paceline-operator", "namespace": _NAMESPACE},
            "spec": {
                "holderIdentity": "rival",
                "leaseDurationSeconds": 15,
                "renewTime": _LONG_AGO.format(second),
            },
        }
        control_plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(lease))

    renew(0)
    with api_proxy(control_plane.kubeconfig, tmp_path) as proxy:
        proxy.date = "Fri, 01 Jan 2100 00:00:00 GMT"
        through = {"KUBECONFIG": str(proxy.kubeconfig)}
        with running_operator(control_plane, _NAMESPACE, tmp_path, settings=through) as operator:
            looks = on("get", "leases", name="paceline-operator")
            for second in range(1, _RENEWALS):
                renew(second)
                begin = proxy.mark()

                def has_looked_thrice(begin: int = begin) -> bool:
                    return sum(map(looks, proxy.calls[begin:])) >= 3

                wait_until(has_looked_thrice, within_s=60)
                assert operator.get("/readyz") == "standing by\n"
            eventually(lambda: operator.get("/readyz") == "leading\n", told_by=operator.log)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")
