"""The chart's alerts about a service, for one service and with its own objective.

They record nothing: the chart's rules may record the same for all services. Alerts about what the
operator concludes are the chart's alone: a team's Prometheus need not scrape the operator.
"""

import json
from decimal import Decimal
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest

_RUNBOOK: Final = "https://github.com/paceline/paceline/blob/main/docs/runbooks/{}.md"
_MOST_MISSES: Final = Decimal("0.9")
"""An objective so low that its budget cannot be spent faster still has an alert."""
_DEFAULT_OBJECTIVE: Final = "0.99"
"""The sidecar's own, where no SLA is declared."""
_SERVICE: Final = "namespace, model_name"
_POD: Final = "namespace, pod, model_name"
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


def alerts(service: InferenceService) -> list[Manifest]:
    """Render the rules; without an SLA there is no budget to burn."""
    objective = _DEFAULT_OBJECTIVE if service.spec.sla is None else service.spec.sla.objective
    budget = Decimal(1) - Decimal(objective)
    burning = [] if service.spec.sla is None else _burn_rates(service, budget)
    return [
        *burning,
        _service_down(service),
        _engine_down(service),
        _engine_fault(service),
        _kv_pressure(service),
        _queue_growing(service),
        _refusals(service, budget),
    ]


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
        _no_engine(service, _SERVICE),
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
        _no_engine(service, _POD),
        "10m",
        "warning",
        {
            "summary": "The engine of {{ $labels.pod }} does not answer",
            "description": "The sidecar refuses requests with 503 until its engine is back.",
            "runbook_url": _RUNBOOK.format("engine-down"),
        },
    )


def _engine_fault(service: InferenceService) -> Manifest:
    faults = f"paceline_engine_faults_total{{{_matching(service)}}}"
    return _alert(
        "PacelineEngineFault",
        f"sum by ({_POD}) (increase({faults}[30m])) > 0",
        "",
        "warning",
        {
            "summary": "The engine of {{ $labels.pod }} failed or fell silent",
            "description": "It had been ready: what ran got 503. Its log has the reason, and the"
            " stacks of a step that hung.",
            "runbook_url": _RUNBOOK.format("engine-down"),
        },
    )


def _kv_pressure(service: InferenceService) -> Manifest:
    preempted = _rate(service, "paceline_preemptions_total")
    return _alert(
        "PacelineKVPressure",
        f"{preempted}\n/ {_rate(service, 'paceline_requests_total')} > 0.1",
        "15m",
        "warning",
        {
            "summary": "{{ $labels.model_name }} has too little KV memory for its load",
            "description": "{{ $value | humanizePercentage }} as many preemptions as requests:"
            " sequences lose their KV blocks to others.",
            "runbook_url": _RUNBOOK.format("overload"),
        },
    )


def _queue_growing(service: InferenceService) -> Manifest:
    matching = _matching(service)
    waiting = f'paceline_waiting_requests{{{matching}, lane="interactive"}}'
    running = f"paceline_running_requests{{{matching}}}"
    return _alert(
        "PacelineQueueGrowing",
        f"sum by ({_SERVICE}) ({waiting}) > sum by ({_SERVICE}) ({running})\n"
        f"and sum by ({_SERVICE}) ({waiting}) > sum by ({_SERVICE}) ({waiting} offset 10m)",
        "10m",
        "warning",
        {
            "summary": "The queue of {{ $labels.model_name }} grows",
            "description": "{{ $value }} interactive requests wait, more than run and more than"
            " ten minutes ago.",
            "runbook_url": _RUNBOOK.format("overload"),
        },
    )


def _refusals(service: InferenceService, budget: Decimal) -> Manifest:
    refused = _rate(service, "paceline_requests_total", ', outcome=~"refused|shed"')
    return _alert(
        "PacelineRefusals",
        f"{refused}\n/ {_rate(service, 'paceline_requests_total')} > {budget.normalize():f}",
        "15m",
        "warning",
        {
            "summary": "{{ $labels.model_name }} turns {{ $value | humanizePercentage }} of its"
            " requests away",
            "description": "More than the objective lets miss: the load is above what the pods"
            " serve within the SLA.",
            "runbook_url": _RUNBOOK.format("overload"),
        },
    )


def _miss_ratio(service: InferenceService, window: str) -> str:
    series = "paceline_sla_requests_total"
    missed = _rate(service, series, ', result="missed"', window=window)
    return f"{missed}\n/ {_rate(service, series, window=window)}"


def _rate(service: InferenceService, series: str, more: str = "", *, window: str = "10m") -> str:
    return f"sum by ({_SERVICE}) (rate({series}{{{_matching(service)}{more}}}[{window}]))"


def _matching(service: InferenceService) -> str:
    """Match this service's series; PromQL quotes text as JSON does."""
    labels = {"namespace": service.metadata.namespace, "model_name": service.served_name}
    return ", ".join(f"{name}={json.dumps(text)}" for name, text in labels.items())


def _alert(
    name: str, expression: str, lasting: str, severity: str, annotations: dict[str, str]
) -> Manifest:
    # Each alert has its own section on the page of its group.
    runbook = f"{annotations['runbook_url']}#{name.lower()}"
    return {
        "alert": name,
        "expr": expression,
        **({"for": lasting} if lasting else {}),
        "labels": {"severity": severity},
        "annotations": annotations | {"runbook_url": runbook},
    }
