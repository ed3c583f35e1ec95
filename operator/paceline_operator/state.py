"""The whole status of a service, from what was observed and concluded."""

from collections.abc import Sequence

from paceline_api.labels import selector
from paceline_api.status import EngineStatus, Status
from paceline_operator.adapter_status import adapter_statuses
from paceline_operator.conditions.judgement import Judgement
from paceline_operator.conditions.plan import Plan
from paceline_operator.conditions.readiness import count_replicas
from paceline_operator.measured_status import sla_status, tuning_status
from paceline_operator.observe import Observed
from paceline_operator.render.service import url
from paceline_operator.report import conditions


def status_of(observed: Observed, plan: Plan, judgements: Sequence[Judgement]) -> Status:
    """Compose the status; deterministic, so that an unchanged world gives an unchanged status."""
    service, report = observed.service, observed.report
    counts = count_replicas(observed)
    labels = selector(service.metadata.name)
    return Status(
        observed_generation=service.metadata.generation,
        observed_config_hash=_acknowledged(observed, plan),
        replicas=counts.present,
        ready_replicas=counts.ready,
        updated_replicas=counts.updated,
        selector=",".join(f"{key}={value}" for key, value in labels.items()),
        url=url(service),
        conditions=conditions(service, judgements, observed.now),
        sla=sla_status(report) if report else service.status.sla,
        tuning=tuning_status(report) if report else service.status.tuning,
        engine=_engine(observed),
        adapters=adapter_statuses(observed),
    )


def _acknowledged(observed: Observed, plan: Plan) -> str | None:
    """Name the hot configuration that all pods hold; while they move, the one they held before."""
    report = observed.report
    is_acknowledged = (
        report is not None
        and report.acknowledged
        and bool(report.pods)
        and all(pod.acknowledged_hash == plan.config_hash for pod in report.pods)
    )
    before = observed.service.status.observed_config_hash
    return plan.config_hash if is_acknowledged else before


def _engine(observed: Observed) -> EngineStatus | None:
    images = {pod.engine.image_id for pod in observed.pods if pod.engine.image_id}
    if not images:
        return None
    return EngineStatus(
        image_digest=max(images), model_revision=observed.service.spec.model.revision
    )
