"""Metrics of sidecar and operator -> the tables of docs/metrics.md."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry

from paceline_operator.metrics import Metrics
from paceline_sidecar.metrics.names import PACELINE, VLLM

OPERATOR_UNITS: Final = {
    "paceline_operator_reconcile_total": "reconciliations",
    "paceline_operator_queue_depth": "services",
    "paceline_operator_api_requests_total": "requests",
    "paceline_operator_status_writes_total": "writes",
    "paceline_operator_status_write_errors_total": "writes",
    "paceline_operator_tuning_rounds_total": "rounds",
    "paceline_operator_shard_owned": "-",
    "paceline_operator_reports_waiting": "reports",
    "paceline_operator_shard_up": "processes",
    "paceline_operator_shard_ends_total": "ends",
    "paceline_operator_shard_services": "services",
    "paceline_operator_services_untuned": "services",
    "paceline_operator_services_stalled": "services",
    "paceline_operator_watch_starts_total": "watches",
    "paceline_operator_watch_pauses_total": "watches",
    "paceline_operator_watch_problem": "-",
    "paceline_operator_services": "services",
    "paceline_operator_is_leader": "-",
    "paceline_operator_experiment_verdict": "-",
    "paceline_capacity_utilization": "ratio",
    "paceline_recommended_replicas": "pods",
    "paceline_cost_per_million_output_tokens": "as the price",
    "paceline_cost_per_million_tokens": "as the price",
    "paceline_tuner_pods": "pods",
    "paceline_tuner_swinging_pods": "pods",
    "paceline_config_acknowledged": "-",
    "paceline_condition": "-",
    "paceline_operator_build_info": "-",
}
"""Units of metrics whose names do not end in them; prometheus_client keeps none."""
_ENDINGS: Final = {
    "_timestamp_seconds": "Unix time",
    "_seconds": "seconds",
    "_seconds_total": "seconds",
    "_bytes": "bytes",
    "_ratio": "0 to 1",
    "_requests_per_second": "requests/s",
    "_tokens_per_second": "tokens/s",
}
_EXPOSED_AS: Final = {"counter": "_total", "info": "_info"}


def tables() -> dict[str, str]:
    """Return the page's tables by the name of their markers."""
    of_pods = {"paceline": PACELINE, "vllm": tuple(VLLM.values())}
    return {
        name: _table(_row(m.exposed, m.kind, m.unit, m.labels, m.help) for m in listed)
        for name, listed in of_pods.items()
    } | {"operator": _table(_operator_rows(Metrics().registry))}


def _table(rows: Iterable[str]) -> str:
    head = ("| Name | Type | Unit | Labels | Meaning |", "|---|---|---|---|---|")
    return "\n".join((*head, *rows))


def _row(name: str, kind: str, unit: str, labels: Iterable[str], meaning: str) -> str:
    listed = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {kind} | {unit} | {listed} | {meaning} |"


def _operator_rows(registry: CollectorRegistry) -> Iterator[str]:
    for collector in registry._collector_to_names:  # a scrape leaves out what has no series yet
        (family,) = collector.collect()
        labels = getattr(collector, "_labelnames", ())
        if family.type == "info":  # its labels are its value
            labels = family.samples[0].labels
        name = f"{family.name}{_EXPOSED_AS.get(family.type, '')}"
        yield _row(name, family.type, _unit(name), labels, family.documentation)


def _unit(name: str) -> str:
    by_ending = (unit for ending, unit in _ENDINGS.items() if name.endswith(ending))
    return next(by_ending, None) or OPERATOR_UNITS[name]
