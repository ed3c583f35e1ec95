"""The chart's own RBAC is enough for the operator, with Roles alone and with a ClusterRole."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest
from paceline_operator.errors import TerminatingError
from paceline_operator.kubernetes_api import KubernetesClient
from paceline_operator.metrics import Metrics
from paceline_testing.job_pods import as_account
from paceline_testing.running_operator import eventually, running_operator
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster

CHART = Path(__file__).parents[2] / "charts" / "paceline"
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def _rights(namespace: str, *, is_namespaced: bool) -> list[Manifest]:
    """The chart's service account and all that it may do."""
    values: dict[str, Any] = {"watchNamespaces": [namespace] if is_namespaced else []}
    rendered = Chart.load(CHART).render(values, name=namespace, namespace=namespace)
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return [document for document in documents if document["kind"] in _KINDS]


def _remove(cluster: Cluster, namespace: str, rights: list[Manifest]) -> None:
    """Remove all of it: what stays would be seen by the next operator that watches everything."""
    cluster.kubectl("delete", "ns", namespace, "--ignore-not-found", "--timeout=120s")
    wide = [found for found in rights if found["kind"].startswith("Cluster")]
    if wide:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=yaml.safe_dump_all(wide))


@pytest.mark.parametrize("is_namespaced", [True, False], ids=["Role", "ClusterRole"])
def test_the_charts_rights_are_enough(
    control_plane: Cluster, tmp_path: Path, request: pytest.FixtureRequest, *, is_namespaced: bool
) -> None:
    """Every write is made once: children, token, status, events, the Lease, a deletion."""
    namespace = "rights-role" if is_namespaced else "rights-clusterrole"
    rights = _rights(namespace, is_namespaced=is_namespaced)
    request.addfinalizer(partial(_remove, control_plane, namespace, rights))
    control_plane.kubectl("create", "ns", namespace)
    control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=yaml.safe_dump_all(rights))
    (account,) = (found for found in rights if found["kind"] == "ServiceAccount")
    name = account["metadata"]["name"]
    lease = {"PACELINE_OPERATOR_LEASE_NAME": name}
    limited = as_account(control_plane, namespace, name, tmp_path)

    with running_operator(
        limited, namespace, tmp_path, is_namespaced=is_namespaced, settings=lease
    ) as operator:
        manifest = a_manifest("judged", replicas=2)
        manifest["metadata"].pop("namespace")
        control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(manifest))

        def is_whole() -> bool:
            listing = ("get", "pdb,deploy,secret,netpol", "-l", "serving.paceline.dev/service")
            text = control_plane.kubectl("-n", namespace, *listing, "-o", "name")
            return len(text.split()) == 4

        eventually(is_whole, told_by=operator.log)
        control_plane.kubectl("-n", namespace, "scale", "pisvc/judged", "--replicas=1")

        def has_no_budget() -> bool:
            return control_plane.kubectl("-n", namespace, "get", "pdb", "-o", "name") == ""

        eventually(has_no_budget, told_by=operator.log)
        eventually(
            lambda: operator.metric("paceline_operator_status_writes_total") > 0,
            told_by=operator.log,
        )
        refused = [line for line in operator.get("/metrics").splitlines() if 'code="403"' in line]
        log = operator.log.read_text()

    assert refused == []
    assert "forbidden" not in log.lower()


async def test_a_namespace_that_is_being_deleted_is_told_from_a_missing_right(
    control_plane: Cluster,
) -> None:
    """Both are answered with 403."""
    namespace = "leaving"
    anchor = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anchor"}}
    held = anchor | {"metadata": {"name": "anchor", "finalizers": ["tests.paceline.dev/hold"]}}
    control_plane.kubectl("create", "ns", namespace)
    control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(held))
    control_plane.kubectl("delete", "ns", namespace, "--wait=false")
    configuration = Configuration()
    await config.load_kube_config(str(control_plane.kubeconfig), client_configuration=configuration)
    api = ApiClient(configuration)
    try:
        late = anchor | {"metadata": {"name": "late", "namespace": namespace}}
        with pytest.raises(TerminatingError):
            await KubernetesClient(api, Metrics()).apply(late)
    finally:
        await api.close()
        release = '{"metadata": {"finalizers": null}}'
        control_plane.kubectl("-n", namespace, "patch", "cm/anchor", "--type=merge", "-p", release)
        control_plane.kubectl("wait", "--for=delete", f"ns/{namespace}", "--timeout=120s")
