"""The engine and the sidecar in one pod: ports, probes, drain, resources."""

from typing import Any, Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import ADMIN_TLS, TEMPLATE_HASH, Manifest, labels, selector
from paceline_api.pod import environment
from paceline_operator.render import overrides
from paceline_operator.render.overrides import plain
from paceline_operator.render.volumes import Volume, volumes

_UID: Final = 65532
# A numeric user: the kubelet cannot prove that a named one is not root.
_POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": _UID,
    "runAsGroup": _UID,
    "fsGroup": _UID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# On deletion both hooks run at once, then the engine gets SIGTERM, and the sidecar after it.
# The sidecar must drain while the engine still computes: its hook starts the drain as soon as
# endpoints have forgotten the pod, the engine's hook waits until the sidecar has left its port.
_START_DRAIN: Final = "import os, signal, time; time.sleep(2); os.kill(1, signal.SIGTERM)"
_AWAIT_DRAIN: Final = """
import socket, time
while True:
    try:
        socket.create_connection(("127.0.0.1", 8001), 1).close()
    except OSError:
        break
    time.sleep(0.2)
"""
_GRACE_AFTER_DRAIN_S: Final = 20
_ADMIN_PORT: Final = 8001


def pod_template(
    service: InferenceService, *, engine_image: str, sidecar_image: str, template_hash: str
) -> Manifest:
    """Render the pod; only cold fields appear in it."""
    own = service.spec.pod_metadata
    found = volumes(service)
    return {
        "metadata": {
            "labels": (own.labels or {})
            | labels(service.metadata.name)
            | {TEMPLATE_HASH: template_hash},
            "annotations": own.annotations or {},
        },
        "spec": {
            "serviceAccountName": service.metadata.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": service.spec.rollout.drain_seconds
            + _GRACE_AFTER_DRAIN_S,
            "securityContext": overrides.with_groups(service, _POD_SECURITY),
            "initContainers": [_sidecar(service, sidecar_image, found)],
            "containers": [_engine(service, service.spec.engine.image or engine_image, found)],
            "volumes": [{"name": name, **volume.source} for name, volume in found.items()],
            **_scheduling(service),
            **overrides.pod_fields(service),
        },
    }


def _engine(service: InferenceService, image: str, found: dict[str, Volume]) -> Manifest:
    return {
        "name": "engine",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": overrides.with_variables(service, environment.engine(service)),
        # Asked of the sidecar, which knows. Without a probe of its own a container that comes back
        # would be ready at once, and the pod with it, before the sidecar's next answer.
        "readinessProbe": _probe(service, "/health/ready", _ADMIN_PORT, period_s=2, failures=2),
        "resources": _resources(service),
        "securityContext": _CONTAINER_SECURITY,
        # The engine's last words become the condition that a person reads.
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-c", _AWAIT_DRAIN]}}},
        "volumeMounts": [
            {"name": name, **volume.engine} for name, volume in found.items() if volume.engine
        ],
    }


def _sidecar(service: InferenceService, image: str, found: dict[str, Volume]) -> Manifest:
    admin = ADMIN_TLS if service.admin_tls else "admin"
    return {
        "name": "sidecar",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "env": [*environment.sidecar(service), *overrides.tracing_variables(service)],
        "ports": [
            {"name": "http", "containerPort": 8000, "protocol": "TCP"},
            {"name": admin, "containerPort": _ADMIN_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe(service, "/health/live", admin, period_s=1, failures=120),
        "livenessProbe": _probe(service, "/health/live", admin, period_s=10, failures=6),
        "readinessProbe": _probe(service, "/health/ready", admin, period_s=2, failures=2),
        "resources": _sidecar_resources(service),
        "securityContext": _CONTAINER_SECURITY,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-c", _START_DRAIN]}}},
        "volumeMounts": [
            {"name": name, **volume.sidecar} for name, volume in found.items() if volume.sidecar
        ],
    }


def _probe(
    service: InferenceService, path: str, port: str | int, *, period_s: int, failures: int
) -> Manifest:
    scheme = "HTTPS" if service.admin_tls else "HTTP"  # the kubelet verifies no certificate
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(service: InferenceService) -> Manifest:
    wanted = service.spec.resources
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if wanted.cpu is not None:
        requests["cpu"] = str(wanted.cpu)
        if wanted.exclusive_cpus:
            limits["cpu"] = str(wanted.cpu)
    if wanted.memory is not None:
        requests["memory"] = limits["memory"] = str(wanted.memory)
    if wanted.gpu.count and not wanted.gpu.claim:
        requests[wanted.gpu.resource_name] = limits[wanted.gpu.resource_name] = str(
            wanted.gpu.count
        )
    resources: Manifest = {"requests": requests, "limits": limits}
    if wanted.claims:
        resources["claims"] = [plain(claim) for claim in wanted.claims]
    return resources


def _sidecar_resources(service: InferenceService) -> Manifest:
    """Ask for a little; a pod is Guaranteed only where every container has limits, too."""
    asked = service.spec.sidecar.resources
    given = {"cpu": asked.cpu, "memory": asked.memory}
    amounts = {name: str(amount) for name, amount in given.items() if amount is not None}
    if service.spec.resources.exclusive_cpus:
        # Less than a whole CPU: it would be given one to itself.
        amounts = {"cpu": "900m", "memory": "1Gi"} | amounts
        return {"requests": amounts, "limits": amounts}
    resources: Manifest = {"requests": {"cpu": "100m", "memory": "256Mi"} | amounts}
    if "memory" in amounts:
        resources["limits"] = {"memory": amounts["memory"]}
    return resources


def _scheduling(service: InferenceService) -> Manifest:
    wanted = service.spec.scheduling
    fields: Manifest = {
        "nodeSelector": wanted.node_selector,
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_none=True)
            for toleration in wanted.tolerations or ()
        ],
        "resourceClaims": [plain(claim) for claim in service.spec.resource_claims or ()],
        "affinity": wanted.affinity,
        "priorityClassName": wanted.priority_class_name,
        "runtimeClassName": wanted.runtime_class_name,
        "schedulerName": wanted.scheduler_name,
        "topologySpreadConstraints": _spread(service),
    }
    return {name: value for name, value in fields.items() if value}


def _spread(service: InferenceService) -> list[Manifest]:
    """Spread over nodes, and over what else the spec names; pods of the service count."""
    wanted = service.spec.scheduling
    found: list[Manifest] = []
    if wanted.topology_spread != "None":
        is_required = wanted.topology_spread == "Required"
        found.append(
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule" if is_required else "ScheduleAnyway",
            }
        )
    found += [plain(constraint) for constraint in wanted.topology_spread_constraints or ()]
    own = {"labelSelector": {"matchLabels": selector(service.metadata.name)}}
    return [constraint | own for constraint in found]
