"""Argo CD's health check, by a real Lua, on what the operator itself writes to status."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from local_cluster.cluster import Cluster
from paceline_api.hashes import template_hash
from paceline_api.labels import Manifest
from paceline_operator.observe import ContainerExit, ContainerStatus, Observation, ObservedPod
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status
from paceline_operator.write_plan import plan_writes
from paceline_testing.argocd_health import CHECK, health
from paceline_testing.services import a_live_service, a_pod, a_service

KEY = "resource.customizations.health.serving.paceline.dev_InferenceService"

SERVING = a_pod(template_hash=template_hash(a_service().spec))
STARTING = replace(SERVING, is_ready=False, engine=ContainerStatus(is_running=True))
UNPULLED = replace(STARTING, engine=ContainerStatus(waiting_reason="ImagePullBackOff"))
CRASHING = replace(
    STARTING,
    engine=ContainerStatus(
        waiting_reason="CrashLoopBackOff",
        last_exit=ContainerExit(
            "Error", 1, json.dumps({"reason": "ModelNotFound", "message": "?"})
        ),
        restarts=1,
    ),
)


def reported(*pods: ObservedPod, problem: str = "", **spec: Any) -> Manifest:
    """A service with the status that the operator concludes for these pods."""
    manifest = a_live_service(**spec)
    service = a_service(**spec)
    counts = {"observedGeneration": 2, "updatedReplicas": service.spec.replicas}
    deployment = {
        "metadata": {"generation": 2},
        "spec": {"replicas": service.spec.replicas},
        "status": counts,
    }
    observation = Observation(
        service=service,
        children={("Deployment", service.metadata.name): deployment},
        pods=pods,
        report=None,
        now=datetime.now(UTC),
    )
    plan = plan_writes(service.spec)
    conditions = service_conditions(observation, plan, problem=problem)
    status = service_status(observation, plan, conditions)
    return manifest | {"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}


@pytest.mark.parametrize(
    ("service", "wanted"),
    [
        (reported(SERVING), "Healthy"),
        (reported(replicas=0), "Healthy"),
        (reported(STARTING), "Progressing"),
        (reported(), "Progressing"),
        (reported(SERVING, replicas=2), "Progressing"),
        (reported(UNPULLED), "Progressing"),
        (reported(CRASHING), "Degraded"),
        (reported(SERVING, problem="quota exceeded"), "Degraded"),
        (reported(SERVING, paused=True), "Suspended"),
        (reported(STARTING, paused=True), "Suspended"),
        (a_live_service(), "Progressing"),
        (a_live_service() | {"status": {}}, "Progressing"),
        (a_live_service() | {"status": {"observedGeneration": 1, "conditions": []}}, "Progressing"),
        (a_live_service(paused=True), "Suspended"),
    ],
    ids=[
        "serving", "scaled to zero", "starting", "no pod", "too few", "image", "no model",
        "refused child", "paused", "paused at start", "no status", "empty status",
        "no conditions", "paused without status",
    ],
)  # fmt: skip
def test_the_health_follows_what_the_operator_says(service: Manifest, wanted: str) -> None:
    """Each with a sentence that a person reads in Argo CD."""
    status, message = health(service)

    assert (status, bool(message)) == (wanted, True)


def test_a_newer_spec_is_progressing_until_the_operator_has_seen_it() -> None:
    """The status still speaks of the spec before."""
    service = reported(SERVING)
    service["metadata"]["generation"] = 2

    assert health(service)[0] == "Progressing"


def every_condition() -> Iterator[tuple[str, str, str]]:
    for kind in ("ModelAvailable", "WorkloadAvailable", "TelemetryAvailable", "SLAMet",
                 "SLAAchievable", "DeviceHealthy", "TuningActive"):  # fmt: skip
        for truth in ("True", "False", "Unknown"):
            yield kind, truth, "Healthy"
    yield "Stalled", "Unknown", "Healthy"
    yield "Stalled", "True", "Degraded"
    yield "Ready", "False", "Progressing"
    yield "Ready", "Unknown", "Progressing"


@pytest.mark.parametrize(("kind", "truth", "wanted"), [*every_condition()])
def test_no_other_condition_changes_the_health(kind: str, truth: str, wanted: str) -> None:
    """A breach of the SLA is an alert: sync waves must not wait for traffic."""
    service = reported(SERVING)
    for condition in service["status"]["conditions"]:
        if condition["type"] == kind:
            condition["status"] = truth

    assert kind in {condition["type"] for condition in service["status"]["conditions"]}
    assert health(service)[0] == wanted


@pytest.mark.cluster
def test_it_is_installed_beside_what_argocd_holds(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """The command of the file's head, which must not take other settings away."""
    request.addfinalizer(partial(cluster.kubectl, "delete", "ns", "argocd", "--wait=false"))
    cluster.kubectl("create", "ns", "argocd")
    cluster.kubectl(
        "-n", "argocd", "create", "cm", "argocd-cm", "--from-literal=url=https://a.test"
    )
    made = cluster.kubectl(
        *("-n", "argocd", "create", "configmap", "argocd-cm", "--dry-run=client", "-o", "yaml"),
        f"--from-file={KEY}={CHECK}",
    )
    cluster.kubectl("apply", "--server-side", "--field-manager=paceline", "-f", "-", input=made)

    data = json.loads(cluster.kubectl("-n", "argocd", "get", "cm", "argocd-cm", "-o", "json"))[
        "data"
    ]
    assert data == {"url": "https://a.test", KEY: CHECK.read_text()}
