"""The children that serving does not need: the pods' addresses, monitor and alerts, gateways."""

from dataclasses import dataclass
from typing import Any, Final

from paceline_api.inference_service import InferenceService, Spec
from paceline_api.labels import ADMIN_TLS, Manifest, metadata, pods_name, selector
from paceline_operator.observe import ObjectId
from paceline_operator.render.alerts import alerts
from paceline_operator.render.gateway import (
    ENVOY_GATEWAY,
    INFERENCE_EXTENSION,
    inference_pool,
    traffic_policy,
)

MONITORING: Final = "monitoring.coreos.com/v1"
"""The API of the Prometheus Operator, where a cluster has it."""


@dataclass(frozen=True, slots=True)
class AddedKind:
    """A kind that a cluster need not have."""

    version: str
    """Its API: group and version."""
    brought_by: str
    """What is to be installed for it."""


ADDED_KINDS: Final = {
    "PodMonitor": AddedKind(MONITORING, "the Prometheus Operator"),
    "PrometheusRule": AddedKind(MONITORING, "the Prometheus Operator"),
    "BackendTrafficPolicy": AddedKind(ENVOY_GATEWAY, "Envoy Gateway"),
    "InferencePool": AddedKind(INFERENCE_EXTENSION, "the Gateway API's inference extension"),
}


def extras(service: InferenceService) -> dict[ObjectId, Manifest | None]:
    """Render each; None where the spec does not ask for it."""
    name, wanted = service.metadata.name, service.spec.monitoring
    return {
        ("Service", pods_name(name)): _addresses(service),
        ("PodMonitor", name): _pod_monitor(service) if wanted.pod_monitor else None,
        ("PrometheusRule", name): _rules(service) if wanted.rules else None,
        ("BackendTrafficPolicy", name): traffic_policy(service),
        ("InferencePool", name): inference_pool(service),
    }


def asks_for_extras(spec: Spec) -> bool:
    """Tell whether the spec asks for any of an added kind."""
    monitoring, api = spec.monitoring, spec.api
    return bool(
        monitoring.pod_monitor
        or monitoring.rules
        or api.gateway != "None"
        or api.inference_pool is not None
    )


def _addresses(service: InferenceService) -> Manifest:
    """Render a headless Service: its name resolves to each pod that is ready.

    A client that balances by itself must not be given a pod that still loads its model.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service, pods_name(service.metadata.name)),
        "spec": {
            "clusterIP": "None",
            "selector": selector(service.metadata.name),
            "ports": [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _pod_monitor(service: InferenceService) -> Manifest:
    """Render the scrape of every pod of this service, from its admin port.

    Where that is to speak TLS, pods of before do not yet; each has a port of one of the names.
    """
    endpoints: list[Manifest] = [{"port": "admin"}]
    if service.admin_tls:
        # A scrape shows no token that another pod could take.
        tls = {"insecureSkipVerify": True}
        endpoints.append({"port": ADMIN_TLS, "scheme": "https", "tlsConfig": tls})
    return _of_prometheus(
        service,
        "PodMonitor",
        {
            "selector": {"matchLabels": selector(service.metadata.name)},
            "podMetricsEndpoints": endpoints,
        },
    )


def _rules(service: InferenceService) -> Manifest:
    """Render the chart's alerts about a service, for this one."""
    groups = [{"name": "paceline-service", "rules": alerts(service)}]
    return _of_prometheus(service, "PrometheusRule", {"groups": groups})


def _of_prometheus(service: InferenceService, kind: str, spec: dict[str, Any]) -> Manifest:
    meta = metadata(service)
    # The operator's own win: it finds its children by them.
    meta["labels"] = (service.spec.monitoring.labels or {}) | meta["labels"]
    return {"apiVersion": MONITORING, "kind": kind, "metadata": meta, "spec": spec}
