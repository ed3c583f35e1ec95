"""Why the limits are what they are: a service's last decisions, in words. Pure."""

from paceline_operator.local.screen import change_line, clock_time
from paceline_operator.local.state import Decision, LocalState
from paceline_operator.tuning.model import SLA, Observed, PodReport


def explain(state: LocalState, pod: str | None, *, last: int) -> str:
    """The newest `last` decisions of one pod, or of all; oldest first."""
    decisions = [item for item in state.decisions if pod in {None, item.pod.name}]
    blocks = [_decision(item, state.sla) for item in decisions[-last:]]
    head = [f"{state.name} · {state.model} · {state.url}"]
    if not blocks:
        head.append(f"no decision yet{f' about {pod}' if pod else ''}")
    if state.report and state.report.history:
        changes = [f"  {change_line(change)}" for change in state.report.history]
        blocks.append("\n".join(["last changes, newest first", *changes]))
    return "\n\n".join(["\n".join(head), *blocks])


def _decision(decision: Decision, sla: SLA) -> str:
    pod = decision.pod
    rows = [
        ("inputs", _inputs(pod)),
        ("observed", _observed(pod.observed, sla)),
        ("prediction", _prediction(pod)),
        ("limits", _limits(pod)),
        ("binding", pod.binding),
        ("verdict", f"{pod.verdict} ({pod.phase})"),
        ("reason", pod.error or pod.reason),
    ]
    head = f"{clock_time(decision.at)}  pod/{pod.name}  mode {decision.mode}"
    return "\n".join([head, *(f"  {name:<11} {text}" for name, text in rows)])


def _inputs(pod: PodReport) -> str:
    capacity = "unknown" if pod.capacity_rps is None else f"{pod.capacity_rps:.2f} requests/s"
    return (
        f"{pod.running} running, {pod.waiting} waiting,"
        f" {pod.arrival_rps:.2f} requests/s arrive, capacity within the SLA {capacity}"
    )


def _observed(observed: Observed, sla: SLA) -> str:
    parts = [
        f"{name} p99 {_ms(seen)} (target {_ms(target)})"
        for name, seen, target in (
            ("TTFT", observed.ttft_p99_ms, sla.ttft_p99_ms),
            ("TPOT", observed.tpot_p99_ms, sla.tpot_p99_ms),
            ("ITL", observed.itl_p99_ms, sla.itl_p99_ms),
        )
        if seen is not None or target is not None
    ]
    if observed.attainment is not None:
        parts.append(f"attainment {observed.attainment:.1%} of {observed.samples} requests")
    return ", ".join(parts)


def _prediction(pod: PodReport) -> str:
    if pod.predicted_step_ms is None:
        return "no step model yet"
    error = "" if pod.model_mape is None else f", mean error {pod.model_mape:.1%}"
    return f"a step takes {_ms(pod.predicted_step_ms)}{error}"


def _limits(pod: PodReport) -> str:
    target = "none" if pod.step_target_ms is None else _ms(pod.step_target_ms)
    return f"batch {pod.batch_size}, tokens {pod.token_budget}, step target {target}"


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f} ms"
