"""The chart's own RBAC is enough for the operator, and no more than it uses, in both installs."""

import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from local_cluster.cluster import Cluster
from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.errors import TerminatingError, WriteRefusedError
from paceline_operator.kubernetes_api import KubernetesClient
from paceline_operator.metrics import Metrics
from paceline_operator.render.children import token_secret
from paceline_operator.warm_start_map import ConfigMapStore
from paceline_testing.chart_rights import chart_rights
from paceline_testing.gateway_kinds import kinds_of_gateways
from paceline_testing.job_pods import as_account
from paceline_testing.kubelet import hold_up, make_ready, pod_of, remove
from paceline_testing.prometheus_kinds import kinds_of_prometheus
from paceline_testing.running_operator import RunningOperator, eventually, running_operator
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster

CHART = Path(__file__).parents[2] / "charts" / "paceline"
_PROCESSES = 2
_ADDED = ("podmonitor", "prometheusrule", "btp", "infpool")
# Asked for by admission alone, which leaves no request of ours: see the test of owner references.
_OF_ADMISSION = ("serving.paceline.dev", "inferenceservices/finalizers", "", "update")


Apply = Callable[..., None]
"""Applies the service with these fields of its spec."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One verb on one resource, by one role; `name` where only that object may be touched."""

    role: str
    group: str
    resource: str
    name: str
    verb: str

    @property
    def what(self) -> tuple[str, str, str, str]:
        return self.group, self.resource, self.name, self.verb


@dataclass(frozen=True, slots=True)
class Install:
    """The chart's service account with its rights; it watches a namespace beside its own."""

    admin: Cluster
    limited: Cluster
    account: str
    home: str
    watched: str
    rights: tuple[Manifest, ...]

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.admin.kubectl("-n", self.watched, *args, **options)

    def granted(self) -> set[Grant]:
        roles = [found for found in self.rights if found["kind"] in {"Role", "ClusterRole"}]
        return {
            Grant(role["metadata"]["name"], group, resource, name, verb)
            for role in roles
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }

    def used(self) -> set[Grant]:
        """Read from the API server's audit log which role allowed each request of the account."""
        assert self.admin.audit_log is not None
        lines = self.admin.audit_log.read_text().splitlines()
        user = f"system:serviceaccount:{self.home}:{self.account}"
        events = [event for event in map(json.loads, lines) if event["user"]["username"] == user]
        return {grant for event in events for grant in _uses(event, self.granted())}


def _uses(event: Manifest, granted: set[Grant]) -> Iterator[Grant]:
    what = event.get("objectRef")
    if what is None:
        return  # discovery, which every account may do
    resource = "/".join(part for part in (what["resource"], what.get("subresource")) if part)
    reason = event["annotations"]["authorization.k8s.io/reason"]
    role = re.search(r'of (?:Cluster)?Role "([^"]+)"', reason)
    assert role is not None, event
    verbs = [event["verb"]]
    if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
        verbs.append("create")  # by server-side apply: the API server asks for this right, too
    for verb in verbs:
        found = Grant(role[1], what.get("apiGroup", ""), resource, what.get("name", ""), verb)
        yield found if found in granted else replace(found, name="")


@contextmanager
def _installed(
    admin: Cluster, name: str, *, is_namespaced: bool, without: str = ""
) -> Iterator[Install]:
    """Make both namespaces and the chart's rights, less those on the resource `without`."""
    home, watched = f"{name}-system", name
    namespaces = [watched] if is_namespaced else []
    rights = chart_rights(name, home, watchNamespaces=namespaces, tuner={"processes": _PROCESSES})
    for role in (found for found in rights if "rules" in found):
        role["rules"] = [rule for rule in role["rules"] if without not in rule["resources"]]
    wide = [found for found in rights if found["kind"].startswith("Cluster")]
    for namespace in (home, watched):
        admin.kubectl("create", "ns", namespace)
    try:
        admin.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(rights))
        (account,) = (found for found in rights if found["kind"] == "ServiceAccount")
        account_name = account["metadata"]["name"]
        with tempfile.TemporaryDirectory() as folder:
            limited = as_account(admin, home, account_name, Path(folder))
            yield Install(admin, limited, account_name, home, watched, tuple(rights))
    finally:
        # What stays would be seen by the next operator that watches everything.
        admin.kubectl("delete", "ns", home, watched, "--ignore-not-found", "--timeout=120s")
        if wide:
            text = yaml.safe_dump_all(wide)
            admin.kubectl("delete", "--ignore-not-found", "-f", "-", input=text)


@asynccontextmanager
async def _client(cluster: Cluster) -> AsyncIterator[KubernetesClient]:
    configuration = Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    api = ApiClient(configuration)
    try:
        yield KubernetesClient(api, Metrics())
    finally:
        await api.close()


def _live_a_whole_life(install: Install, operator: RunningOperator) -> None:
    """Make a service, break what it owns, scale it, hold up its pod and open its network."""

    def until_there(*kinds: str) -> None:
        listing = ("get", ",".join(kinds), "-l", "serving.paceline.dev/service", "-o", "name")
        eventually(
            lambda: len(install.kubectl(*listing).split()) == len(kinds), told_by=operator.log
        )

    def until_gone(kind: str) -> None:
        eventually(lambda: install.kubectl("get", kind, "-o", "name") == "", told_by=operator.log)

    def apply(**spec: Any) -> None:
        manifest = a_manifest("judged", **spec)
        manifest["metadata"].pop("namespace")
        install.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    apply(replicas=2, monitoring={"podMonitor": True, "rules": True}, api=_gateways("FailClose"))
    until_there("pdb", "deploy", "secret", "netpol", "cm", "sa", *_ADDED)
    watched = ("pdb,deploy,netpol,cm,sa,svc", "-l", "serving.paceline.dev/service")
    theirs = "app.kubernetes.io/part-of=theirs"
    install.kubectl("label", "--overwrite", *watched, theirs)
    relabelled = ("get", watched[0], "-l", theirs, "-o", "name")
    eventually(lambda: install.kubectl(*relabelled) == "", told_by=operator.log)
    apply(
        replicas=2,
        monitoring={"podMonitor": True, "rules": True, "labels": {"team": "a"}},
        api=_gateways("FailOpen"),
        admission={"requestTimeout": "5m"},
    )
    labelled = ("get", "podmonitor,prometheusrule", "-l", "team=a", "-o", "name")
    eventually(lambda: len(install.kubectl(*labelled).split()) == 2, told_by=operator.log)
    told = ("get", "btp,infpool", "-o", "yaml")
    eventually(lambda: "FailOpen" in install.kubectl(*told), told_by=operator.log)
    eventually(lambda: "requestTimeout: 310s" in install.kubectl(*told), told_by=operator.log)
    install.kubectl("delete", "sa,netpol", "judged")
    until_there("netpol", "sa")
    install.kubectl("scale", "pisvc/judged", "--replicas=1")
    until_gone("pdb")
    pod = eventually(lambda: _one(pod_of(install.admin, install.watched, "judged")))
    hold_up(install.admin, install.watched, pod, 'MountVolume.SetUp failed for volume "tls" : no')
    reason = "jsonpath={.status.conditions[?(@.type=='WorkloadAvailable')].reason}"
    query = ("get", "pisvc", "judged", "-o", reason)
    eventually(lambda: install.kubectl(*query) == "VolumeUnavailable", told_by=operator.log)
    remove(install.admin, install.watched, pod)
    _try_new_images(install, operator, apply)
    apply(network={"policy": "None"})
    for kind in ("netpol", *_ADDED):
        until_gone(kind)


def _gateways(failure_mode: str) -> Manifest:
    picker = {"name": "picker", "port": {"number": 9002}, "failureMode": failure_mode}
    return {"gateway": "EnvoyGateway", "inferencePool": {"endpointPickerRef": picker}}


def _try_new_images(install: Install, operator: RunningOperator, apply: Apply) -> None:
    """Begin with a canary, and think better of it."""

    def deployments() -> int:
        return len(install.kubectl("get", "deploy", "-o", "name").split())

    pod = eventually(lambda: _one(pod_of(install.admin, install.watched, "judged")))
    make_ready(install.admin, install.watched, pod)
    install.kubectl("wait", "--for=condition=Ready", "pisvc/judged", "--timeout=60s")
    apply(engine={"image": "another:1"})
    eventually(lambda: deployments() == 2, told_by=operator.log)
    apply()
    eventually(lambda: deployments() == 1, told_by=operator.log)


def _one(names: str) -> str:
    """While a Deployment scales there may be none, or two."""
    return names if len(names.split()) == 1 else ""


@pytest.mark.parametrize("is_namespaced", [True, False], ids=["Role", "ClusterRole"])
async def test_the_charts_rights_are_what_the_operator_uses(
    control_plane: Cluster, tmp_path: Path, *, is_namespaced: bool
) -> None:
    """Every verb that it needs is granted, and every verb that is granted is used."""
    name = "rights-role" if is_namespaced else "rights-clusterrole"
    with _installed(control_plane, name, is_namespaced=is_namespaced) as install:
        own = {
            "PACELINE_OPERATOR_LEASE_NAME": install.account,
            "PACELINE_OPERATOR_NAMESPACE": install.home,
            "PACELINE_OPERATOR_POD_IP": "127.0.0.1",
            "PACELINE_OPERATOR_TUNER_PROCESSES": str(_PROCESSES),
        }
        with (
            kinds_of_prometheus(control_plane),
            kinds_of_gateways(control_plane),
            running_operator(
                *(install.limited, install.watched, tmp_path),
                is_namespaced=is_namespaced,
                settings=own,
            ) as operator,
        ):
            _live_a_whole_life(install, operator)
            requests = operator.get("/metrics").splitlines()
        async with _client(install.limited) as client:
            # What it writes once it has measured pods.
            store = ConfigMapStore(client, install.home, lambda: None)
            await store.save(await store.load())
        refused = [line for line in requests if 'code="403"' in line]
        log = operator.log.read_text()
        granted = {one for one in install.granted() if one.what != _OF_ADMISSION}
        wide = [found for found in install.rights if found["kind"].startswith("Cluster")]
        if control_plane.audit_log is None:
            pytest.skip("this cluster's audit log is not ours to read")
        used = install.used()

    assert refused == []
    assert "forbidden" not in log.lower()
    assert used == {one for one in granted if not _is_for_people(one)}
    assert not (is_namespaced and wide)


def _is_for_people(grant: Grant) -> bool:
    """The aggregated roles are for users of the cluster, and no account is bound to them."""
    return grant.role.endswith(("-view", "-edit"))


async def test_owner_references_need_the_right_on_finalizers(control_plane: Cluster) -> None:
    """Where that admission plugin is on, as on OpenShift: a child that blocks its owner's end."""
    resource = "inferenceservices/finalizers"
    with _installed(control_plane, "rights-owner", is_namespaced=True, without=resource) as install:
        manifest = a_manifest("owner") | {"metadata": {"name": "owner"}}
        text = install.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(manifest))
        child = token_secret(InferenceService.read(json.loads(text)), "token")
        async with _client(install.limited) as client:
            with pytest.raises(WriteRefusedError, match="blockOwnerDeletion"):
                await client.create(child)


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
    try:
        late = anchor | {"metadata": {"name": "late", "namespace": namespace}}
        async with _client(control_plane) as client:
            with pytest.raises(TerminatingError):
                await client.apply(late)
    finally:
        release = '{"metadata": {"finalizers": null}}'
        control_plane.kubectl("-n", namespace, "patch", "cm/anchor", "--type=merge", "-p", release)
        control_plane.kubectl("wait", "--for=delete", f"ns/{namespace}", "--timeout=120s")
