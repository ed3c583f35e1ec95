"""How each declared LoRA adapter stands, over all pods of a service."""

from collections.abc import Iterable, Iterator
from typing import Final

from paceline_api.adapter_spec import AdapterSpec
from paceline_api.status import AdapterStatus, Status
from paceline_operator.observe import Observed
from paceline_tuner.service_report import PodReport
from paceline_tuner.telemetry import PodAdapter

_MAX_MESSAGE: Final = 1024


def adapter_statuses(observed: Observed) -> list[AdapterStatus] | None:
    """Count the pods that serve each adapter; what status says until the pods were asked."""
    declared, report = observed.service.spec.adapters, observed.report
    if not declared:
        return None
    if report is None:
        names = {adapter.name for adapter in declared}
        return [kept for kept in observed.service.status.adapters or () if kept.name in names]
    return [_status(adapter, report.pods) for adapter in declared]


def refused(before: Status, after: Status) -> Iterator[AdapterStatus]:
    """Find the adapters that are refused for a reason that status did not tell before."""
    told = {(adapter.name, adapter.message) for adapter in before.adapters or ()}
    for adapter in after.adapters or ():
        if adapter.message is not None and (adapter.name, adapter.message) not in told:
            yield adapter


def _status(adapter: AdapterSpec, pods: Iterable[PodReport]) -> AdapterStatus:
    asked = [pod for pod in pods if not pod.error]
    found = [one for pod in asked for one in pod.adapters if _is_of(one, adapter)]
    # Without the pod's name: the same refusal of every new pod is no news.
    refusals = sorted(one.message for one in found if one.state == "refused")
    return AdapterStatus(
        name=adapter.name,
        loaded_pods=sum(one.state == "loaded" for one in found),
        pods=len(asked),
        message=refusals[0][:_MAX_MESSAGE] if refusals else None,
    )


def _is_of(one: PodAdapter, adapter: AdapterSpec) -> bool:
    """A pod that still has the adapter of an earlier URI does not have this one."""
    return (one.name, one.path) == (adapter.name, adapter.path)
