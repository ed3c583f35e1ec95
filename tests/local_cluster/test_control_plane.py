"""The control plane alone, which tests of the reconciler use."""

import pytest

from local_cluster.cluster import Cluster, KubectlFailedError

pytestmark = pytest.mark.cluster

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle}
spec:
  replicas: 2
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec: {containers: [{name: idle, image: paceline.local/nothing}]}
"""


def test_controllers_turn_a_deployment_into_pods(cluster: Cluster) -> None:
    """The controllers are the real ones: a Deployment becomes pods by itself."""
    cluster.kubectl("apply", "--filename=-", input=DEPLOYMENT)

    query = "--for=jsonpath={.status.replicas}=2"
    cluster.kubectl("wait", query, "deployment/idle", "--timeout=60s")
    cluster.kubectl("delete", "deployment/idle", "--cascade=foreground", "--timeout=60s")
    assert cluster.kubectl("get", "pods", "--selector=app=idle", "--output=name") == ""


def test_a_service_account_may_do_only_what_rbac_grants(cluster: Cluster) -> None:
    """RBAC decides as everywhere, so a chart's missing permission shows here."""
    someone = "--as=system:serviceaccount:default:default"

    with pytest.raises(KubectlFailedError, match="forbidden"):
        cluster.kubectl("get", "secrets", someone)
