"""The children that serving does not need: addresses of single pods, a monitor and alerts."""

import json
from decimal import Decimal
from typing import Any, Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import ADMIN_TLS, Manifest, metadata, pods_name, selector
from paceline_operator.observe import ObjectId

MONITORING: Final = "monitoring.coreos.com/v1"
"""The API of the Prometheus Operator, where a cluster has it."""

_RUNBOOK: Final = "https://github.com/paceline/paceline/blob/main/docs/runbooks/{}.md"
_MOST_MISSES: Final = Decimal("0.9")
"""An objective so low that its budget cannot be spent faster still has an alert."""
# Multi-window, multi-burn-rate, as in the chart's own rules: name, times the budget, the two
# windows, for, severity, and how long the budget of a month lasts.
_BURN_RATES: Final = (
    ("PacelineSLABurningFast", "14.4", "5m", "1h", "2m", "critical"),
    ("PacelineSLABurning", "6", "30m", "6h", "15m", "critical"),
    ("PacelineSLABurningSlowly", "3", "2h", "1d", "1h", "warning"),
)
_DESCRIPTIONS: Final = {
    "PacelineSLABurningFast": "{{ $value | humanizePercentage }} of the last five minutes' requests"
    " missed the SLA. At this rate a month's budget is gone in two days.",
    "PacelineSLABurning": "{{ $value | humanizePercentage }} of the last half hour's requests"
    " missed the SLA. At this rate a month's budget is gone in five days.",
    "PacelineSLABurningSlowly": "{{ $value | humanizePercentage }} of the last two hours' requests"
    " missed the SLA.",
}


def extras(service: InferenceService) -> dict[ObjectId, Manifest | None]:
    """Render each; None where the spec does not ask for it."""
    name, wanted = service.metadata.name, service.spec.monitoring
    return {
        ("Service", pods_name(name)): _addresses(service),
        ("PodMonitor", name): _pod_monitor(service) if wanted.pod_monitor else None,
        ("PrometheusRule", name): _rules(service) if wanted.rules else None,
    }


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
    """Render the chart's alerts about a service, for this one and with its own objective.

    They record nothing: the chart's rules may record the same for all services.
    """
    rules = [_service_down(service), _engine_down(service)]
    if service.spec.sla is not None:
        rules = [*_burn_rates(service, Decimal(1) - Decimal(service.spec.sla.objective)), *rules]
    return _of_prometheus(
        service, "PrometheusRule", {"groups": [{"name": "paceline-service", "rules": rules}]}
    )


def _burn_rates(service: InferenceService, budget: Decimal) -> list[Manifest]:
    found = []
    for name, times, short, long, lasting, severity in _BURN_RATES:
        misses = min(Decimal(times) * budget, _MOST_MISSES).normalize()
        found.append(
            _alert(
                name,
                f"{_miss_ratio(service, short)} > {misses:f}\n"
                f"and {_miss_ratio(service, long)} > {misses:f}",
                lasting,
                severity,
                {
                    "summary": "{{ $labels.model_name }} spends its SLA budget"
                    f" {Decimal(times):.0f} times too fast",
                    "description": _DESCRIPTIONS[name],
                    "runbook_url": _RUNBOOK.format("sla-burning"),
                },
            )
        )
    return found


def _service_down(service: InferenceService) -> Manifest:
    return _alert(
        "PacelineServiceDown",
        _no_engine(service, "namespace, model_name"),
        "2m",
        "critical",
        {
            "summary": "No engine of {{ $labels.model_name }} answers",
            "description": "Every request gets 503. Each pod had a ready engine and lost it,"
            " or waits for its first.",
            "runbook_url": _RUNBOOK.format("engine-down"),
        },
    )


def _no_engine(service: InferenceService, labels: str) -> str:
    """Match where no engine is ready and one was: a pod's first loads its model."""
    matching = _matching(service)
    return (
        f"max by ({labels}) (paceline_engine_up{{{matching}}}) == 0\n"
        f"and max by ({labels}) (paceline_engine_starts_total{{{matching}}}) > 0"
    )


def _engine_down(service: InferenceService) -> Manifest:
    return _alert(
        "PacelineEngineDown",
        _no_engine(service, "namespace, pod, model_name"),
        "10m",
        "warning",
        {
            "summary": "The engine of {{ $labels.pod }} does not answer",
            "description": "The sidecar refuses requests with 503 until its engine is back.",
            "runbook_url": _RUNBOOK.format("engine-down"),
        },
    )


def _miss_ratio(service: InferenceService, window: str) -> str:
    series, matching = "paceline_sla_requests_total", _matching(service)
    by = "sum by (namespace, model_name)"
    return (
        f'{by} (rate({series}{{{matching}, result="missed"}}[{window}]))\n'
        f"/ {by} (rate({series}{{{matching}}}[{window}]))"
    )


def _matching(service: InferenceService) -> str:
    """Match this service's series; PromQL quotes text as JSON does."""
    labels = {"namespace": service.metadata.namespace, "model_name": service.served_name}
    return ", ".join(f"{name}={json.dumps(text)}" for name, text in labels.items())


def _alert(
    name: str, expression: str, lasting: str, severity: str, annotations: dict[str, str]
) -> Manifest:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": annotations,
    }


def _of_prometheus(service: InferenceService, kind: str, spec: dict[str, Any]) -> Manifest:
    meta = metadata(service)
    # The operator's own win: it finds its children by them.
    meta["labels"] = (service.spec.monitoring.labels or {}) | meta["labels"]
    return {"apiVersion": MONITORING, "kind": kind, "metadata": meta, "spec": spec}
