"""The operator's own metrics."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from paceline_operator import __version__
from paceline_operator.service_gauges import ServiceGauges
from paceline_tuner.service_report import PredictionCheck, ServiceReport

_PREFIX = "paceline_operator"
_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ERROR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)


class Metrics:
    """One set per process, on a registry of its own; each metric is named once, here."""

    def __init__(self) -> None:
        """Create every metric at zero."""
        self.registry = CollectorRegistry()
        self.reconciles = self._counter(
            "reconcile", "Reconciliations by result: ok, refused, conflict, error.", "result"
        )
        self.reconcile_duration = Histogram(
            f"{_PREFIX}_reconcile_duration_seconds",
            "One reconciliation, from observing to reporting.",
            buckets=_DURATION_BUCKETS_S,
            registry=self.registry,
        )
        self.queue_depth = self._gauge("queue_depth", "Services that wait to be reconciled.")
        self.queue_oldest_age = self._gauge(
            "queue_oldest_age_seconds", "How long the oldest of them has waited."
        )
        self.api_requests = self._counter(
            "api_requests", "API requests by verb and HTTP code; 0 is no answer.", "verb", "code"
        )
        self.status_writes = self._counter(
            "status_writes", "Writes of the status of an InferenceService."
        )
        self.status_write_errors = self._counter(
            "status_write_errors", "Writes of a status that failed, but for conflicts."
        )
        self.tuning_rounds = self._counter(
            "tuning_rounds", "Rounds over the pods of one service, by result: ok, error.", "result"
        )
        self.shard_owned = self._gauge(
            "shard_owned", "1 while this replica holds the Lease of a shard of the tuner.", "shard"
        )
        self.reports_waiting = self._gauge(
            "reports_waiting", "Reports of the tuner that the replica that leads has yet to hear."
        )
        self.shard_up = self._gauge(
            "shard_up", "1 while a process of the tuner beside the operator's runs.", "shard"
        )
        self.shard_ends = self._counter(
            "shard_ends", "Ends of such processes, by reason: ended, hung.", "shard", "reason"
        )
        self.shard_services = self._gauge(
            "shard_services", "InferenceServices whose pods such a process tunes.", "shard"
        )
        self.shard_cpu = self._counter("shard_cpu_seconds", "CPU time of such processes.", "shard")
        self.shard_memory = self._gauge(
            "shard_resident_memory_bytes", "Memory of such processes.", "shard"
        )
        self.untuned = self._gauge(
            "services_untuned", "InferenceServices whose pods nobody tunes; 0 while standing by."
        )
        self.stalled = self._gauge(
            "services_stalled", "InferenceServices whose condition Stalled is True."
        )
        self.watch_starts = self._counter(
            "watch_starts", "Watches that were opened, by resource.", "resource"
        )
        self.watch_pauses = self._counter(
            "watch_pauses",
            "Watches that had to wait, as the one before ended at once, by resource.",
            "resource",
        )
        self.watch_problem = self._gauge(
            "watch_problem", "1 while the watch brings no news; /readyz says why."
        )
        self.services = self._gauge("services", "InferenceServices that the operator knows.")
        self.is_leader = self._gauge("is_leader", "1 while this replica holds the Lease.")
        self.api_silence = self._gauge(
            "api_silence_seconds", "How long the API server has left the watch's probe unanswered."
        )
        self.experiment_verdict = self._gauge(
            "experiment_verdict",
            "1 for the present verdict of a service's experiment.",
            "service",
            "verdict",
        )
        self.of_services = ServiceGauges(self.registry)
        self.prediction_errors = Histogram(
            "paceline_operator_prediction_error_ratio",
            "Relative difference between what a change of limits did and what was predicted.",
            ("quantity",),
            buckets=_ERROR_BUCKETS,
            registry=self.registry,
        )
        build = Info(f"{_PREFIX}_build", "The running version.", registry=self.registry)
        build.info({"version": __version__})
        for result in ("ok", "refused", "conflict", "error"):
            self.reconciles.labels(result)  # a rate needs a zero to start from

    def count_outcomes(self, report: ServiceReport) -> None:
        """Count how far predictions were off, of the changes whose outcome a round learned."""
        for pod in report.pods:
            if pod.outcome is None:
                continue
            for quantity in ("step_ms", "ttft_ms", "capacity_rps"):
                compared: PredictionCheck | None = getattr(pod.outcome, quantity)
                if compared is not None:
                    error = abs(compared.error_ratio)
                    self.prediction_errors.labels(quantity.rpartition("_")[0]).observe(error)

    def show_experiments(self, reports: Mapping[str, ServiceReport]) -> None:
        """Show how each service's experiment stands; those without one are not shown."""
        self.experiment_verdict.clear()
        for key, report in reports.items():
            if report.experiment is not None:
                self.experiment_verdict.labels(key, report.experiment.verdict).set(1)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", meaning, labels, registry=self.registry)
