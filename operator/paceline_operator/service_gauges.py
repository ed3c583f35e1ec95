"""What the operator's metrics say about single services: capacity, tuning, conditions, rollouts.

Without the operator's prefix, for autoscalers, alerts and dashboards ask for them by service.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Gauge

from paceline_api.labels import Manifest
from paceline_tuner.service_report import Phase, ServiceReport

_SERVICE: Final = ("namespace", "inferenceservice")
_TRUTHS: Final = {"True": 1.0, "False": 0.0}
_DONE: Final = "Done"


class ServiceGauges:
    """Read anew at each scrape; what is not known is absent, so that nobody acts on it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create every gauge, without a service."""
        self._registry = registry
        self.capacity_rps = self._gauge(
            "capacity_requests_per_second",
            "Requests a second that the service's pods can serve within the SLA.",
        )
        self.utilization = self._gauge(
            "capacity_utilization",
            "Arrivals as a share of what the service's pods can serve within the SLA; may pass 1.",
        )
        self.recommended_replicas = self._gauge(
            "recommended_replicas",
            "Pods that would serve within the SLA what arrives when a pod that is asked for now is"
            " ready.",
        )
        self.output_tps = self._gauge(
            "output_tokens_per_second",
            "Tokens a second that the service's pods generated over tuning.window.",
        )
        self.finished_rps = self._gauge(
            "finished_requests_per_second",
            "Requests a second that the service's pods served to their end over tuning.window.",
        )
        self.cost_output = self._gauge(
            "cost_per_million_output_tokens",
            "What the pods cost over the tokens that they generated, a million of them.",
        )
        self.cost_total = self._gauge(
            "cost_per_million_tokens",
            "What the pods cost over tokens of prompts and answers together, a million of them.",
        )
        self.phases = self._gauge("tuner_pods", "Pods by the phase of their tuning.", "phase")
        self.swinging = self._gauge(
            "tuner_swinging_pods", "Pods whose limits went back and forth too often of late."
        )
        self.last_change = self._gauge(
            "tuner_last_change_timestamp_seconds",
            "When the tuner last changed a pod's limits, by what bound and which way each went.",
            "pod",
            "binding",
            "batch",
            "tokens",
        )
        self.acknowledged = self._gauge(
            "config_acknowledged", "1 while every pod serves by the declared configuration."
        )
        self.condition = self._gauge(
            "condition",
            "1 while the condition is True, 0 while it is False, absent while it is Unknown.",
            "type",
        )
        self.rollout = self._gauge(
            "image_rollout_seconds",
            "How long a rollout of images has been in its phase; absent once it is done.",
            "phase",
        )

    def show_reports(self, reports: Mapping[str, ServiceReport]) -> None:
        """Show what the tuner concluded about each service."""
        shown = (
            self.capacity_rps,
            self.utilization,
            self.recommended_replicas,
            self.output_tps,
            self.finished_rps,
            self.cost_output,
            self.cost_total,
        )
        for gauge in (*shown, self.phases, self.swinging, self.acknowledged, self.last_change):
            gauge.clear()
        for key, report in reports.items():
            service = key.split("/", 1)
            given, cost = report.throughput, report.cost
            values = (
                report.capacity_rps,
                report.utilization,
                report.recommended_replicas,
                None if given is None else given.output_tps,
                None if given is None else given.finished_rps,
                None if cost is None else cost.per_million_output,
                None if cost is None else cost.per_million_total,
            )
            for gauge, value in zip(shown, values, strict=True):
                if value is not None:
                    gauge.labels(*service).set(value)
            if not report.pods:
                continue
            phases = Counter(pod.phase for pod in report.pods)
            phase: Phase
            for phase in get_args(Phase):
                self.phases.labels(*service, phase).set(phases[phase])
            self.swinging.labels(*service).set(sum(pod.is_swinging for pod in report.pods))
            self.acknowledged.labels(*service).set(report.acknowledged)
            for change in (pod.last_change for pod in report.pods if pod.last_change is not None):
                batch = _way(change.from_batch_size, change.to_batch_size)
                tokens = _way(change.from_token_budget, change.to_token_budget)
                labels = (*service, change.pod, change.binding, batch, tokens)
                self.last_change.labels(*labels).set(change.at)

    def show_statuses(self, services: Iterable[Manifest], now: datetime) -> None:
        """Show what the status of each service says."""
        self.condition.clear()
        self.rollout.clear()
        for raw in services:
            service = raw["metadata"]["namespace"], raw["metadata"]["name"]
            status = raw.get("status") or {}
            for condition in status.get("conditions") or ():
                if (truth := _TRUTHS.get(condition["status"])) is not None:
                    self.condition.labels(*service, condition["type"]).set(truth)
            rollout = status.get("rollout") or {"phase": _DONE}
            if rollout["phase"] != _DONE:
                age_s = (now - datetime.fromisoformat(rollout["since"])).total_seconds()
                self.rollout.labels(*service, rollout["phase"]).set(max(0.0, age_s))

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"paceline_{name}", meaning, (*_SERVICE, *labels), registry=self._registry)


def _way(before: int, after: int) -> str:
    """Say which way a limit went."""
    return "same" if after == before else "up" if after > before else "down"
