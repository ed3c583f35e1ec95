"""Several services under one operator, with a Deployment controller and pods that are played."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline_api.labels import CANARY, SERVICE_LABEL, TEMPLATE_HASH, Manifest
from paceline_api.status import RolloutStatus, Status
from paceline_operator.reconcile import Reconciler
from paceline_operator.render.children import Surroundings
from paceline_operator.rollout.step import trial_name
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.reconcilers import a_reconciler
from paceline_testing.reports import a_report
from paceline_testing.services import a_live_service
from paceline_tuner.service_report import ExperimentReport, ServiceReport

Outcome = Literal["good", "worse", "crash", "pull", "never"]
"""What an engine's image does: serve, miss the SLA, crash, not be there, never get ready."""

_WORSE_AFTER_S = 60.0
_READY_AFTER_S = 20.0


async def _lead() -> None:
    """Hold the Lease."""


@dataclass
class RollingWorld:
    """The cluster, the images' behaviour, and an operator that may be replaced at any time."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """By image of the engine; one that is not named is good."""
    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: ManualClock = field(default_factory=ManualClock)
    around: Surroundings = field(
        default_factory=lambda: Surroundings("engine:1", "sidecar:1", "paceline")
    )
    pods_of: dict[tuple[str, str], list[Manifest]] = field(default_factory=dict)
    """By Deployment and image."""
    made_at: dict[str, float] = field(default_factory=dict)
    compared_since: dict[str, float] = field(default_factory=dict)
    reports: dict[str, ServiceReport] = field(default_factory=dict)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, **images: str) -> None:
        """Start another operator, which remembers nothing, maybe with other images."""
        self.around = Surroundings(
            images.get("engine", self.around.engine_image),
            images.get("sidecar", self.around.sidecar_image),
            "paceline",
        )
        self.compared_since.clear()
        self.reports.clear()
        self.reconciler = a_reconciler(
            self.cluster, self.clock, self, around=self.around, reports=self.reports
        )

    def serve(self, name: str, **spec: Any) -> None:
        """Apply a service, or change it."""
        live = a_live_service(name, **spec)
        live["metadata"]["uid"] = f"uid-{name}"
        old = self.cluster.objects.get(("InferenceService", name), {})
        live |= {"status": old["status"]} if "status" in old else {}
        live["metadata"]["resourceVersion"] = str(10**6 + len(self.cluster.writes))
        self.cluster.objects["InferenceService", name] = live

    def reconcile(self, name: str) -> None:
        asyncio.run(self.reconciler.reconcile(f"default/{name}"))

    def run(self, seconds: float, *, step_s: float = 10.0) -> None:
        """Let everybody act for a while."""
        for _ in range(int(seconds / step_s)):
            self.turn_over(step_s)

    def turn_over(self, step_s: float = 10.0) -> None:
        for key in self.keys():
            self.reconcile(key.partition("/")[2])
        self.play()
        self.clock.advance(step_s)

    def play(self) -> None:
        """Play the Deployment controller, the kubelet and the tuner."""
        for name in [name for kind, name in self.cluster.objects if kind == "Deployment"]:
            self._control(self.cluster.objects["Deployment", name])
        alive = {name for kind, name in self.cluster.objects if kind == "Deployment"}
        self.pods_of = {key: pods for key, pods in self.pods_of.items() if key[0] in alive}
        for key in self.keys():
            self._compare(key)

    def keys(self) -> Iterable[str]:
        return [f"default/{name}" for kind, name in self.cluster.objects if kind == KIND]

    def service(self, key: str) -> Manifest | None:
        return self.cluster.objects.get((KIND, key.partition("/")[2]))

    def children(self, key: str) -> Iterable[Manifest]:
        name = key.partition("/")[2]
        return [
            one
            for (kind, _), one in self.cluster.objects.items()
            if kind != KIND and one["metadata"].get("labels", {}).get(SERVICE_LABEL) == name
        ]

    def pods(self, key: str) -> Iterable[Manifest]:
        name = key.partition("/")[2]
        found = [pod for pods in self.pods_of.values() for pod in pods]
        return [pod for pod in found if pod["metadata"]["labels"][SERVICE_LABEL] == name]

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return ()

    def status(self, name: str) -> Status:
        found = self.service(f"default/{name}") or {}
        return Status.model_validate(found.get("status", {}))

    def rollout(self, name: str) -> RolloutStatus | None:
        return self.status(name).rollout

    def phase(self, name: str) -> str:
        rollout = self.rollout(name)
        return "" if rollout is None else rollout.phase

    def engine(self, deployment: str) -> str | None:
        """The image of a Deployment's engine; None where there is no such Deployment."""
        found = self.cluster.objects.get(("Deployment", deployment))
        return None if found is None else _engine(found)

    def serving(self, name: str) -> list[str]:
        """The images of the ready pods."""
        return [pod["spec"]["image"] for pod in self.pods(f"default/{name}") if _is_ready(pod)]

    def events(self) -> list[str]:
        return [one["reason"] for (kind, _), one in self.cluster.objects.items() if kind == "Event"]

    def _control(self, deployment: Manifest) -> None:
        """Bring a Deployment one step nearer to its template, surge first."""
        name, wanted = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        which, generation = _engine(deployment), deployment["metadata"]["generation"]
        label = deployment["spec"]["template"]["metadata"]["labels"][TEMPLATE_HASH]
        here = [pods for (of, _), pods in self.pods_of.items() if of == name]
        fresh = self.pods_of.setdefault((name, f"{which} {label}"), [])
        old = [pod for pods in here for pod in pods if pods is not fresh]
        for pod in fresh:
            self._grow(pod)
        ready = sum(map(_is_ready, (*fresh, *old)))
        if len(fresh) < wanted and len(fresh) + len(old) <= wanted:
            fresh.append(self._pod(deployment))
        elif old and (
            ready > wanted or not _is_ready(old[0]) or len(fresh) + len(old) > wanted + 1
        ):
            self._drop(old[0])
        elif len(fresh) > wanted:
            fresh.pop()
        num_old = sum(len(pods) for (of, _), pods in self.pods_of.items() if of == name)
        status: Manifest = {
            "observedGeneration": generation,
            "replicas": num_old,
            "updatedReplicas": len(fresh),
            "availableReplicas": ready,
        }
        began = self.made_at.setdefault(f"{name}/{generation}", self.clock.now)
        is_late = self.clock.now - began > deployment["spec"]["progressDeadlineSeconds"]
        is_done = len(fresh) == wanted == num_old and all(map(_is_ready, fresh))
        if is_late and not is_done:
            status["conditions"] = [
                {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
            ]
        deployment["status"] = status

    def _pod(self, deployment: Manifest) -> Manifest:
        template = deployment["spec"]["template"]
        number = len(self.made_at)
        name = f"{deployment['metadata']['name']}-{number}"
        self.made_at[name] = self.clock.now
        return {
            "metadata": {"name": name, "labels": dict(template["metadata"]["labels"])},
            "spec": {"nodeName": "n1", "image": _engine(deployment)},
            "status": {"podIP": "10.0.0.1", "conditions": []},
        }

    def _grow(self, pod: Manifest) -> None:
        """Let a pod become what its image makes of it."""
        outcome = self.outcomes.get(pod["spec"]["image"], "good")
        if self.clock.now - self.made_at[pod["metadata"]["name"]] < _READY_AFTER_S:
            return
        serves = outcome in {"good", "worse"}
        state: Manifest = {"running": {}}
        if outcome == "crash":
            state = {"waiting": {"reason": "CrashLoopBackOff"}}
        if outcome == "pull":
            state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        pod["status"] |= {
            "conditions": [{"type": "Ready", "status": str(serves)}],
            "containerStatuses": [{"name": "engine", "ready": serves, "state": state}],
            "initContainerStatuses": [
                {"name": "sidecar", "ready": serves, "state": {"running": {}}}
            ],
        }

    def _drop(self, pod: Manifest) -> None:
        for pods in self.pods_of.values():
            if pod in pods:
                pods.remove(pod)

    def _compare(self, key: str) -> None:
        """Conclude as the tuner would of the canary's requests."""
        rollout = self.rollout(key.partition("/")[2])
        is_tried = rollout is not None and rollout.phase == "Canary"
        canaries = [pod for pod in self.pods(key) if CANARY in pod["metadata"]["labels"]]
        if rollout is None or not is_tried or not any(map(_is_ready, canaries)):
            self.compared_since.pop(key, None)
            self.reports.pop(key, None)
            return
        for_s = self.clock.now - self.compared_since.setdefault(key, self.clock.now)
        is_bad = self.outcomes.get(rollout.images.engine) == "worse"
        verdict = "Running"
        if is_bad and for_s >= _WORSE_AFTER_S:
            verdict = "Worse"
        elif for_s >= self._canary_s(key):
            verdict = "NoDifference"
        trial = ExperimentReport(trial_name(rollout), "Canary", verdict, f"found {verdict}")  # type: ignore[arg-type] # one of three
        self.reports[key] = a_report(key=key, pods=(), image_trial=trial)

    def _canary_s(self, key: str) -> float:
        spec = (self.service(key) or {})["spec"]
        return float(spec.get("rollout", {}).get("canarySeconds", 900))


KIND = "InferenceService"


def _engine(deployment: Manifest) -> str:
    (engine,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(engine["image"])


def _is_ready(pod: Manifest) -> bool:
    return any(each["status"] == "True" for each in pod["status"]["conditions"])
