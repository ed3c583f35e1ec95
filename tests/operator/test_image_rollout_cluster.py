"""A rollout of images on a real API server with its Deployment controller; pods are played."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest
from paceline_testing.running_operator import RunningOperator, eventually, running_operator
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster

_NAMESPACE = "image-rollout-tests"
_CANARY = "serving.paceline.dev/canary"


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace whose pods the test itself makes ready."""

    cluster: Cluster
    operator: RunningOperator

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", _NAMESPACE, *args, **options)

    def serve(self, **spec: Any) -> None:
        manifest = a_manifest("quick", **({"replicas": 2} | spec))
        manifest["metadata"].pop("namespace")
        self.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def get(self, kind: str, name: str) -> Manifest:
        text = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        found: Manifest = json.loads(text) if text else {}
        return found

    def status(self) -> Manifest:
        status: Manifest = self.get("pisvc", "quick").get("status", {})
        return status

    def phase(self) -> str:
        return str(self.status().get("rollout", {}).get("phase", ""))

    def pods(self) -> list[Manifest]:
        label = "serving.paceline.dev/service=quick"
        found: list[Manifest] = json.loads(self.kubectl("get", "pods", "-l", label, "-o", "json"))[
            "items"
        ]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def play(self, bad: str = "") -> bool:
        """Play the kubelet: every pod gets ready, but those of a bad image crash."""
        for pod in self.pods():
            image = pod["spec"]["containers"][0]["image"]
            if pod["status"].get("conditions", [{}])[-1].get("reason") != "Played":
                self._become(pod["metadata"]["name"], is_ready=image != bad)
        return True

    def _become(self, name: str, *, is_ready: bool) -> None:
        crashes = {"waiting": {"reason": "CrashLoopBackOff"}}
        state = {"running": {}} if is_ready else crashes
        base = {"ready": is_ready, "restartCount": 0, "image": "i", "imageID": "i@sha256:1"}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(is_ready), "reason": "Played"}],
            "containerStatuses": [{"name": "engine", "state": state} | base],
            "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}} | base],
        }
        self.cluster.try_kubectl(
            *("-n", _NAMESPACE, "patch", f"pod/{name}", "--subresource=status", "--type=merge"),
            *("-p", json.dumps({"status": status})),
        )

    def until(self, phase: str, *, bad: str = "") -> None:
        eventually(lambda: self.play(bad) and self.phase() == phase, told_by=self.operator.log)

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}


def _images(version: int) -> dict[str, str]:
    return {
        "PACELINE_OPERATOR_ENGINE_IMAGE": f"engine:{version}",
        "PACELINE_OPERATOR_SIDECAR_IMAGE": f"sidecar:{version}",
    }


@pytest.fixture(scope="module")
def settled(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A service whose pods an operator of version 1 has made."""
    folder: Path = tmp_path_factory.mktemp("rollout")
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    with running_operator(control_plane, _NAMESPACE, folder, settings=_images(1)) as operator:
        place = Place(control_plane, operator)
        place.serve()
        eventually(
            lambda: place.play() and place.status().get("readyReplicas") == 2, told_by=operator.log
        )
    yield folder
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def test_an_upgrade_changes_no_pod_and_new_images_go_out_or_back(
    control_plane: Cluster, settled: Path
) -> None:
    """The Deployments share the service's selector, and neither takes pods of the other."""
    with running_operator(control_plane, _NAMESPACE, settled, settings=_images(2)) as operator:
        place = Place(control_plane, operator)
        before = place.uids()
        reconciles = 'paceline_operator_reconcile_total{result="ok"}'
        eventually(lambda: operator.metric(reconciles) >= 3, told_by=operator.log)
        assert place.uids() == before
        assert place.status()["images"] == {"engine": "engine:1", "sidecar": "sidecar:1"}

        place.serve(engine={"image": "bad:1"}, rollout={"canarySeconds": 10})
        place.until("RolledBack", bad="bad:1")
        eventually(lambda: not place.get("deployment", "quick-canary"), told_by=operator.log)
        assert place.uids() >= before
        assert place.status()["rollout"]["verdict"] == "Failed"

        place.serve(rollout={"imagePolicy": "FollowOperator", "canarySeconds": 3600})
        place.until("Canary")
        eventually(
            lambda: place.play() and place.status().get("readyReplicas") == 3, told_by=operator.log
        )
        canaries = [pod for pod in place.pods() if _CANARY in pod["metadata"]["labels"]]
        num_selected = _num_selected(place)
        main = place.get("deployment", "quick")
        assert len(canaries) == 1
        assert len(place.uids() & before) == 2  # the old pods are untouched
        assert main["status"]["replicas"] == 2  # and their Deployment counts its own alone
        assert num_selected == 3
        assert place.status()["replicas"] == 3

    # Another leader, with the canary's time up, goes on from status.
    with running_operator(control_plane, _NAMESPACE, settled, settings=_images(2)) as operator:
        place = Place(control_plane, operator)
        assert place.phase() == "Canary"
        place.serve(replicas=2)
        eventually(lambda: not place.get("deployment", "quick-canary"), told_by=operator.log)
        eventually(lambda: "rollout" not in place.status(), told_by=operator.log)
        assert place.status()["images"] == {"engine": "engine:1", "sidecar": "sidecar:1"}
        assert len(place.uids() & before) == 2


def _num_selected(place: Place) -> int:
    """Count the pods that the Service selects."""
    selector = place.get("service", "quick")["spec"]["selector"]
    label = ",".join(f"{key}={value}" for key, value in selector.items())
    return len(place.kubectl("get", "pods", "-l", label, "-o", "name").split())
