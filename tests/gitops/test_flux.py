"""Flux applies the quickstart every few seconds while the tuner works, and corrects nothing.

The API server, the operator and Flux's controller are real; the pod's kubelet is the test, and its
engine the simulated one behind HTTP.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_api.schema import FILE
from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import CPU_135M, Disturbance
from paceline_sim.sim_pod import SimPod
from paceline_testing.argocd_health import health
from paceline_testing.flux import Flux, flux
from paceline_testing.running_operator import RunningOperator, eventually, running_operator
from paceline_testing.served_pod import ServedPod, served
from paceline_testing.simulated import an_engine, clients
from paceline_testing.waiting import wait_until
from paceline_wire.limits import Capacity, Limits

pytestmark = [pytest.mark.cluster, pytest.mark.gitops]

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
NAMESPACE = "gitops-tests"
NAME = "quickstart"
NUM_APPLICATIONS = 10
NUM_CHANGES = 3
ITS_OBJECT = f"InferenceService/{NAMESPACE}/{NAME}"


@dataclass(frozen=True, slots=True)
class Home:
    """The quickstart under Flux, with an operator that tunes its one pod."""

    cluster: Cluster
    flux: Flux
    operator: RunningOperator

    def kubectl(self, *args: str) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *args)

    def service(self) -> dict[str, Any]:
        text = self.kubectl("get", "pisvc", NAME, "-o", "json", "--show-managed-fields")
        found: dict[str, Any] = json.loads(text)
        return found

    def changes(self) -> list[str]:
        tuning = self.service().get("status", {}).get("tuning", {})
        return [entry["time"] for entry in tuning.get("history", ())]

    def owners(self) -> dict[str, Any]:
        """Who owns which field of the spec, and since when."""
        return {
            entry["manager"]: (entry["time"], entry["fieldsV1"])
            for entry in self.service()["metadata"]["managedFields"]
            if entry.get("subresource") != "status"
        }

    def until(self, look: Any) -> Any:
        return eventually(look, told_by=self.operator.log)


@pytest.fixture(scope="module")
def home(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds" / FILE))
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
    cluster.kubectl("create", "namespace", NAMESPACE)
    folder = tmp_path_factory.mktemp("gitops")
    files = {"quickstart.yaml": QUICKSTART.read_text()}
    with (
        served(_pod()) as pod,
        running_operator(cluster, NAMESPACE, folder) as operator,
        flux(cluster, NAMESPACE, files, folder) as controller,
    ):
        found = Home(cluster, controller, operator)
        found.until(lambda: _names(found))
        _run(found, pod)
        yield found
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _pod() -> SimPod:
    """A laptop's engine that is three times slower every other half minute: a busy neighbour."""
    capacity = Capacity(32, 2048, 4096, 16, 2048)
    neighbour = tuple(Disturbance(start, start + 30.0, 3.0) for start in range(20, 900, 60))
    engine = an_engine(
        clients(0.7, prompt=(100, 600)),
        hardware=CPU_135M,
        capacity=capacity,
        limits=Limits(32, 2048),
        pacer=make_pacer(CPU_135M.model_info(), capacity),
        disturbances=neighbour,
    )
    return SimPod(engine)


def _names(home: Home) -> str:
    label = f"serving.paceline.dev/service={NAME}"
    return home.kubectl("get", "pods", "-l", label, "-o", "name").strip()


def _run(home: Home, pod: ServedPod) -> None:
    """Play the kubelet: the pod runs at the address of the simulated one."""
    running = {"ready": True, "restartCount": 0, "image": "i", "imageID": "i@sha256:1"}
    status = {
        "phase": "Running",
        "podIP": pod.ip,
        "podIPs": [{"ip": pod.ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "engine", "state": {"running": {}}} | running],
        "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}} | running],
    }
    patch = ("patch", _names(home), "--subresource=status", "--type=merge")
    home.kubectl(*patch, "-p", json.dumps({"status": status}))


def test_flux_corrects_nothing_while_the_tuner_works(home: Home) -> None:
    """By Flux's own account, and by generation and owners of the spec."""
    wait_until(home.flux.is_healthy, within_s=120, every_s=0.5)
    wait_until(home.changes, within_s=120, every_s=0.5)
    before, owners = home.service(), home.owners()
    seen = len(home.flux.applications())
    changes = set(home.changes())
    later: set[str] = set()

    def enough() -> bool:
        later.update(home.changes())
        applied = len(home.flux.applications()) - seen
        return applied >= NUM_APPLICATIONS and len(later - changes) >= NUM_CHANGES

    wait_until(enough, within_s=300, every_s=1)
    after = home.service()
    applications = home.flux.applications()
    assert {found[ITS_OBJECT] for found in applications[1:]} == {"unchanged"}
    assert applications[0][ITS_OBJECT] == "created"
    assert (after["metadata"]["generation"], after["spec"]) == (1, before["spec"])
    assert home.owners() == owners
    assert set(owners) == {"kustomize-controller"}
    # While it applies, which it does every few seconds, Flux says that it does not know.
    wait_until(home.flux.is_healthy, within_s=60, every_s=0.2)
    assert health(after)[0] == "Healthy"


def test_flux_corrects_what_somebody_edits(home: Home) -> None:
    """The control: a change of the spec is seen by each of the measures above."""
    generation = home.service()["metadata"]["generation"]
    before = home.service()["spec"]
    seen = len(home.flux.applications())
    home.kubectl(
        *("patch", "pisvc", NAME, "--type=merge", "--field-manager=somebody"),
        *("-p", '{"spec": {"sla": {"ttft": {"p99": "1s"}}}}'),
    )

    def corrected() -> bool:
        applied = home.flux.applications()[seen:]
        return any(found[ITS_OBJECT] == "configured" for found in applied)

    wait_until(corrected, within_s=120, every_s=0.5)
    assert home.service()["spec"] == before
    assert home.service()["metadata"]["generation"] == generation + 2
