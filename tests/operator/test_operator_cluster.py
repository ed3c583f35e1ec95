"""The operator on a real API server, with its controllers and without a node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest
from paceline_testing.operator_home import Home
from paceline_testing.prometheus_kinds import kinds_of_prometheus
from paceline_testing.running_operator import eventually, running_operator
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    namespace = "operator-tests"
    control_plane.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", namespace)
    folder: Path = tmp_path_factory.mktemp("operator")
    with running_operator(control_plane, namespace, folder) as operator:
        yield Home(control_plane, namespace, operator)
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_service_gets_its_children(home: Home) -> None:
    """Each is owned by the service, so that the garbage collector ends it with the service."""
    home.serve("whole")

    children = home.children("whole")
    uid = (home.get("pisvc", "whole") or {})["metadata"]["uid"]

    assert set(children) == {
        "ConfigMap/whole-runtime",
        "Deployment/whole",
        "NetworkPolicy/whole",
        "Secret/whole-runtime-token",
        "Service/whole",
        "Service/whole-pods",
        "ServiceAccount/whole",
    }
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == uid
        assert owner["controller"] is True


def test_the_pods_pass_the_restricted_standard(home: Home) -> None:
    """The API server itself judges, in a namespace that enforces it."""
    overrides = {
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "volumes": [{"name": "ca", "configMapName": "ca"}, {"name": "nas", "claimName": "nas"}],
        "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["nas"]}],
        "dnsConfig": {"searches": ["corp.example"], "options": [{"name": "ndots", "value": "2"}]},
        "supplementalGroups": [2000],
    }
    pull = [{"name": "registry"}]
    home.serve("restricted", podOverrides=overrides, imagePullSecrets=pull)
    template = (home.get("deployment", "restricted") or {})["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "judged", "labels": {"judged": "yes"}},
        "spec": template["spec"],
    }
    home.kubectl("label", "ns", home.namespace, "pod-security.kubernetes.io/enforce=restricted")

    try:
        home.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
    finally:
        home.kubectl("label", "ns", home.namespace, "pod-security.kubernetes.io/enforce-")


def test_nothing_but_status_is_written_on_the_service(home: Home) -> None:
    """GitOps sees no difference, and deleting never hangs on a finalizer."""
    home.apply(a_manifest("clean"), "--server-side", "--field-manager=argocd-controller")
    home.until(lambda: home.reported("clean"))

    text = home.kubectl("get", "pisvc", "clean", "-o", "json", "--show-managed-fields")
    metadata = json.loads(text)["metadata"]

    assert metadata["generation"] == 1
    assert "annotations" not in metadata
    assert "finalizers" not in metadata
    assert {
        (entry["manager"], entry.get("subresource", "")) for entry in metadata["managedFields"]
    } == {("argocd-controller", ""), ("paceline-operator", "status")}
    same = a_manifest("clean")
    same["metadata"].pop("namespace")
    difference = home.cluster.try_kubectl(
        *("-n", home.namespace, "diff", "--server-side", "--field-manager=argocd-controller"),
        *("-f", "-"),
        input=json.dumps(same),
    )
    assert (difference.returncode, difference.stdout) == (0, "")


def test_a_second_operator_finds_nothing_to_write(control_plane: Cluster, tmp_path: Path) -> None:
    """After a restart with an empty memory, every apply is without effect."""
    namespace = "restart-tests"
    control_plane.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", namespace)
    with running_operator(control_plane, namespace, tmp_path) as operator:
        home = Home(control_plane, namespace, operator)
        home.serve("still", replicas=2)
        home.until(lambda: (home.get("pisvc", "still") or {})["status"].get("replicas") == 2)
        home.until(lambda: "tuning" in (home.get("pisvc", "still") or {})["status"])
        before = _versions(home, "still")

    with running_operator(control_plane, namespace, tmp_path) as operator:
        home = Home(control_plane, namespace, operator)
        reconciles = 'paceline_operator_reconcile_total{result="ok"}'
        home.until(lambda: operator.metric(reconciles) >= 3)
        after = _versions(home, "still")
        writes = operator.metric("paceline_operator_status_writes_total")

    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
    assert after == before
    assert writes == 0


def _versions(home: Home, name: str) -> dict[str, str]:
    found = home.children(name) | {"service": home.get("pisvc", name) or {}}
    return {key: child["metadata"]["resourceVersion"] for key, child in found.items()}


def test_drift_is_repaired(home: Home) -> None:
    """What somebody changes by hand comes back."""
    home.serve("drift")
    home.kubectl("scale", "deployment/drift", "--replicas=5")
    home.kubectl("delete", "service/drift")
    home.kubectl("patch", "configmap/drift-runtime", "-p", '{"data": {"runtime.json": "{}"}}')

    home.until(lambda: (home.get("deployment", "drift") or {})["spec"]["replicas"] == 1)
    home.until(lambda: home.get("service", "drift"))
    home.until(
        lambda: (home.get("configmap", "drift-runtime") or {})["data"]["runtime.json"] != "{}"
    )


def test_a_hot_change_leaves_the_pods_alone(home: Home) -> None:
    """A new p99 is not a new pod template."""
    home.serve("hot")
    before = home.children("hot")

    home.serve("hot", sla={"ttft": {"p99": "300ms"}}, admission={"maxQueuedRequests": 7})

    def told() -> bool:
        text = home.children("hot")["ConfigMap/hot-runtime"]["data"]["runtime.json"]
        return bool(json.loads(text)["sla"]["ttft_p99_ms"] == 300.0)

    home.until(told)
    after = home.children("hot")
    assert _generation(after) == _generation(before)


def test_a_cold_change_rolls_the_pods(home: Home) -> None:
    """More capacity is another process."""
    home.serve("cold")
    before = home.children("cold")

    home.serve("cold", engine={"capacity": {"maxBatchSize": 32}})

    home.until(lambda: _generation(home.children("cold")) > _generation(before))
    label = "serving.paceline.dev/template-hash"
    old, new = (
        found["Deployment/cold"]["spec"]["template"]["metadata"]["labels"][label]
        for found in (before, home.children("cold"))
    )
    assert old != new


def test_what_a_spec_drops_is_dropped_of_a_child_that_was_created(home: Home) -> None:
    """Its creation was no server-side apply, and must not keep what only it had set."""
    overrides = {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}
    home.serve("drops", podOverrides=overrides, tuning={"mode": "Fixed"})

    home.apply(a_manifest("drops", tuning={"mode": "Fixed"}))

    home.until(lambda: "NCCL_DEBUG" not in json.dumps(home.children("drops")))
    deployment = home.get("deployment", "drops") or {}
    managers = json.loads(
        home.kubectl("get", "deployment", "drops", "-o", "json", "--show-managed-fields")
    )["metadata"]["managedFields"]
    ours = [each for each in managers if each["manager"] == "paceline-operator"]
    assert [each["operation"] for each in ours] == ["Apply"]
    assert deployment["metadata"]["annotations"]["serving.paceline.dev/applied"]


def _generation(children: dict[str, Manifest]) -> int:
    (deployment,) = (child for key, child in children.items() if key.startswith("Deployment/"))
    return int(deployment["metadata"]["generation"])


def test_scale_goes_through_the_subresource(home: Home) -> None:
    """An autoscaler writes replicas; the disruption budget follows them, both ways."""
    home.serve("scaled")

    home.kubectl("scale", "pisvc/scaled", "--replicas=2")
    home.until(lambda: "PodDisruptionBudget/scaled" in home.children("scaled"))
    home.until(lambda: (home.get("deployment", "scaled") or {})["spec"]["replicas"] == 2)

    def scale() -> Manifest:
        path = f"/apis/serving.paceline.dev/v1alpha1/namespaces/{home.namespace}"
        found: Manifest = json.loads(
            home.kubectl("get", "--raw", f"{path}/inferenceservices/scaled/scale")
        )
        return found

    home.until(lambda: scale()["status"].get("replicas") == 2)
    status = scale()["status"]
    pods = home.kubectl("get", "pods", "--selector", status["selector"], "--output=name").split()
    assert status["selector"] == "serving.paceline.dev/service=scaled"
    assert len(pods) == 2
    home.kubectl("scale", "pisvc/scaled", "--replicas=1")
    home.until(lambda: "PodDisruptionBudget/scaled" not in home.children("scaled"))
    home.until(lambda: scale()["status"].get("replicas") == 1)


def test_paused_freezes_the_children(home: Home) -> None:
    """A person may change them by hand meanwhile."""
    home.serve("frozen")
    home.serve("frozen", paused=True, replicas=3)
    home.kubectl("delete", "service/frozen")

    home.until(lambda: home.condition("frozen", "Reconciling").get("reason") == "Paused")
    home.serve("frozen", paused=True, replicas=4)
    assert home.get("service", "frozen") is None
    assert (home.get("deployment", "frozen") or {})["spec"]["replicas"] == 1

    home.serve("frozen")
    home.until(lambda: home.get("service", "frozen"))


def test_monitors_come_with_their_kinds(home: Home) -> None:
    """The Prometheus Operator may be installed later; until then the service does without."""
    home.serve("watched", monitoring={"podMonitor": True, "rules": True})
    missing = home.condition("watched", "ExtrasAvailable")
    assert (missing["status"], missing["reason"]) == ("False", "KindMissing")
    assert home.get("deployment", "watched")
    assert home.condition("watched", "Stalled")["status"] == "False"
    with kinds_of_prometheus(home.cluster):
        eventually(
            lambda: home.condition("watched", "ExtrasAvailable").get("status") == "True",
            told_by=home.operator.log,
            within_s=180,
        )
        monitor = home.get("podmonitor", "watched") or {}
        assert _owners(monitor) == [(home.get("pisvc", "watched") or {})["metadata"]["uid"]]
        assert home.get("prometheusrule", "watched")

        home.serve("watched")
        home.until(lambda: home.get("podmonitor", "watched") is None)
        home.until(lambda: home.get("prometheusrule", "watched") is None)
        home.until(lambda: home.condition("watched", "ExtrasAvailable") == {})


def test_an_object_of_somebody_else_is_left_alone(home: Home) -> None:
    """A Service of the same name is not taken over."""
    home.kubectl("create", "service", "clusterip", "taken", "--tcp=80")
    home.serve("taken")

    stalled = home.condition("taken", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "RolloutBlocked")
    assert "Service taken exists" in stalled["message"]
    assert "ownerReferences" not in (home.get("service", "taken") or {})["metadata"]


def test_what_the_api_server_refuses_becomes_a_condition(home: Home) -> None:
    """`affinity` is passed on as it is: only the Deployment's own validation can judge it."""
    home.serve("askew", scheduling={"affinity": {"nodeAffinity": {"required": 1, "nope": []}}})

    stalled = home.condition("askew", "Stalled")
    assert stalled["status"] == "True"
    assert "affinity" in stalled["message"]


def test_pods_make_a_service_ready(home: Home) -> None:
    """Ready follows the pods; the engine's last words name what is wrong with the model."""
    home.serve("lively")
    home.until(lambda: _pod(home, "lively"))
    failed = json.dumps({"reason": "CorruptModel", "message": "blk.0 is cut off"})
    _become(home, "lively", is_ready=False, last_words=failed)
    home.until(lambda: home.condition("lively", "ModelAvailable").get("reason") == "CorruptModel")
    assert home.condition("lively", "ModelAvailable")["message"] == "blk.0 is cut off"
    assert home.condition("lively", "Stalled")["status"] == "True"

    _become(home, "lively", is_ready=True)
    home.until(lambda: home.condition("lively", "Ready").get("status") == "True")
    assert home.condition("lively", "Stalled")["status"] == "False"
    status = (home.get("pisvc", "lively") or {})["status"]
    assert status["readyReplicas"] == 1
    assert status["url"] == f"http://lively.{home.namespace}.svc:8000/v1"
    events = home.kubectl("get", "events", "-o", "json")
    told = [
        (event["reason"], event["type"])
        for event in json.loads(events)["items"]
        if event["involvedObject"]["name"] == "lively"
    ]
    assert ("CorruptModel", "Warning") in told
    assert ("PodsReady", "Normal") in told


def _pod(home: Home, name: str) -> str:
    label = f"serving.paceline.dev/service={name}"
    return home.kubectl("get", "pods", "-l", label, "-o", "name").strip()


def _become(home: Home, name: str, *, is_ready: bool, last_words: str = "") -> None:
    """Play the kubelet."""
    ended = {"exitCode": 1, "reason": "Error", "message": last_words}
    engine = {"running": {}} if is_ready else {"terminated": ended}
    base = {"ready": is_ready, "restartCount": 0, "image": "i", "imageID": "i@sha256:1"}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(is_ready)}],
        "containerStatuses": [{"name": "engine", "state": engine} | base],
        "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}} | base],
    }
    home.kubectl(
        *("patch", _pod(home, name), "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )


def test_a_deleted_service_takes_everything_with_it(home: Home) -> None:
    """By owner references and the garbage collector alone."""
    home.serve("gone", replicas=2)
    assert len(home.children("gone")) == 8

    home.kubectl("delete", "pisvc/gone", "--timeout=30s")

    home.until(lambda: home.children("gone") == {} and not _pod(home, "gone"))


def test_orphans_are_adopted_by_the_service_made_again(home: Home) -> None:
    """Pods serve on through it, and the collector leaves everything alone afterwards."""
    home.serve("orphaned", replicas=2)
    home.until(lambda: len(_pods(home, "orphaned")) == 2)
    before, pods = home.children("orphaned"), _pods(home, "orphaned")

    home.kubectl("delete", "pisvc/orphaned", "--cascade=orphan", "--timeout=30s")
    home.until(lambda: not any(map(_owners, home.children("orphaned").values())))
    home.serve("orphaned", replicas=2)
    uid = (home.get("pisvc", "orphaned") or {})["metadata"]["uid"]
    token = "Secret/orphaned-runtime-token"  # it holds what the operator derives, and is left alone

    def adopted() -> bool:
        children = home.children("orphaned")
        return children.keys() == before.keys() and all(
            _owners(child) == [uid] for key, child in children.items() if key != token
        )

    home.until(adopted)
    _see_the_collector(home)
    after = home.children("orphaned")
    identity = {key: child["metadata"]["uid"] for key, child in before.items()}
    assert {key: child["metadata"]["uid"] for key, child in after.items()} == identity
    assert _generation(after) == _generation(before)
    assert _pods(home, "orphaned") == pods
    assert after[token]["data"] == before[token]["data"]
    assert home.condition("orphaned", "Stalled")["status"] == "False"
    events = json.loads(home.kubectl("get", "events.events.k8s.io", "-ojson"))["items"]
    (note,) = [one["note"] for one in events if one["reason"] == "OrphansAdopted"]
    assert {"Deployment orphaned", "Service orphaned"} <= set(note.partition(": ")[2].split(", "))


def _owners(child: Manifest) -> list[str]:
    return [owner["uid"] for owner in child["metadata"].get("ownerReferences", ())]


def _pods(home: Home, name: str) -> list[str]:
    label = f"serving.paceline.dev/service={name}"
    return sorted(home.kubectl("get", "pods", "-l", label, "-o", "name").split())


def _see_the_collector(home: Home) -> None:
    """Wait until it has taken something whose owner is gone: it has seen all that came before."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "0-0-0-0-0"}
    bait = {"name": "bait", "ownerReferences": [owner]}
    home.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": bait})
    home.until(lambda: home.get("configmap", "bait") is None)


def test_restored_children_are_adopted_and_a_strangers_are_not(home: Home) -> None:
    """A tool for backups restores labels and content, and no owner."""
    home.serve("restored")
    children = home.children("restored")
    home.kubectl("delete", "pisvc/restored", "--timeout=30s")
    home.until(lambda: home.children("restored") == {})
    kept = [children["Deployment/restored"], children["Service/restored"]]
    kept[1]["spec"]["ports"].append({"name": "old", "port": 9, "protocol": "TCP"})
    theirs = children["ConfigMap/restored-runtime"]
    theirs["metadata"]["labels"].pop("app.kubernetes.io/managed-by")
    for child in [*kept, theirs]:
        home.apply(_as_restored(child))

    home.serve("restored")
    stalled = home.until(
        lambda: (found := home.condition("restored", "Stalled"))["status"] == "True" and found
    )
    assert "ConfigMap restored-runtime exists" in stalled["message"]
    assert _owners(home.get("configmap", "restored-runtime") or {}) == []
    home.kubectl("delete", "configmap/restored-runtime")

    home.until(lambda: home.condition("restored", "Stalled")["status"] == "False")
    after = home.children("restored")
    assert after.keys() == children.keys()
    assert _generation(after) == 1
    # Whoever restored it does not keep what the spec has not.
    assert [port["name"] for port in after["Service/restored"]["spec"]["ports"]] == ["http"]


def _as_restored(child: Manifest) -> Manifest:
    """Keep what Velero keeps of the metadata, and all of the rest but the status."""
    metadata = {name: child["metadata"][name] for name in ("name", "labels")}
    annotations = child["metadata"].get("annotations", {})
    rest = {name: value for name, value in child.items() if name != "status"}
    return rest | {"metadata": metadata | {"annotations": annotations}}


def test_a_new_target_shows_in_the_configuration_hash(home: Home) -> None:
    """The hash names the hot fields: pods acknowledge it."""
    home.serve("hashed")
    before = home.children("hashed")["ConfigMap/hashed-runtime"]["data"]["runtime.json"]
    home.serve("hashed", sla={"ttft": {"p99": "400ms"}})
    after = home.children("hashed")["ConfigMap/hashed-runtime"]["data"]["runtime.json"]

    assert json.loads(before)["config_hash"] != json.loads(after)["config_hash"]


def test_the_operator_tells_of_itself(home: Home) -> None:
    """Probes and Prometheus read this."""
    assert home.operator.get("/healthz") == "ok\n"
    assert home.operator.get("/readyz") == "leading\n"
    assert home.operator.metric("paceline_operator_is_leader") == 1
    assert home.operator.metric('paceline_operator_reconcile_total{result="error"}') == 0
