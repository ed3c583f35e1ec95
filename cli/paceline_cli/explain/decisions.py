"""Why the limits are what they are: a service's last decisions, in words. Pure."""

from paceline_cli.local_state import Explained, LocalState
from paceline_cli.up.screen import change_line, clock_time, throughput_line
from paceline_tuner.outcome import Prediction
from paceline_tuner.service_report import ChangeOutcome, MeasuredClass, PredictionCheck
from paceline_tuner.tuned_limits import TunedLimits


def explain_state(state: LocalState, pod: str | None, *, last: int) -> str:
    """The newest `last` decisions on one pod, or on all, oldest first, and the last changes."""
    decisions = [decision for decision in state.decisions if pod in {None, decision.pod}]
    blocks = [f"{state.name} · {state.model} · {state.url}"]
    if rates := throughput_line(state.report):
        blocks[0] += f"\ngives {rates}"
    if state.report and (classes := state.report.observed.by_prompt_tokens):
        blocks.append("\n".join(["first tokens by prompt length", *map(_class, classes)]))
    blocks += [_decision(decision) for decision in decisions[-last:]]
    if not decisions:
        blocks.append(f"no decision yet{f' about {pod}' if pod else ''}")
    if state.report and state.report.history:
        changes = [f"  {change_line(change)}" for change in state.report.history]
        blocks.append("\n".join(["last changes, newest first", *changes]))
    return "\n\n".join(blocks)


def _class(measured: MeasuredClass) -> str:
    ttft = "none" if measured.ttft_ms is None else _ms(measured.ttft_ms)
    in_time = measured.requests - measured.missed
    return (
        f"  {measured.name} tokens: {measured.verdict}, {ttft} of {_ms(measured.target_ms)},"
        f" {in_time} of {measured.requests} requests in time"
    )


def _decision(decision: Explained) -> str:
    held = "" if decision.applied else f", not applied: mode {decision.mode}"
    rows = [
        ("inputs", _inputs(decision)),
        ("prediction", _prediction(decision.prediction)),
        ("limits", f"{_limits(decision.current)} → {_limits(decision.chosen)}{held}"),
        ("proposed", f"{_limits(decision.wanted)}, before the guards"),
        ("binding", decision.binding),
        ("verdict", f"{decision.verdict} ({decision.phase})"),
        ("reason", decision.reason),
    ]
    if decision.outcome is not None:
        rows.append(("outcome", _outcome(decision.outcome)))
    head = f"{clock_time(decision.at)}  pod/{decision.pod}  mode {decision.mode}"
    return "\n".join([head, *(f"  {name:<11} {text}" for name, text in rows)])


def _inputs(decision: Explained) -> str:
    known = {name: value for name, value in decision.inputs.items() if value not in {None, ""}}
    return ", ".join(f"{name} {_plain(value)}" for name, value in known.items()) or "none"


def _prediction(prediction: Prediction) -> str:
    if prediction.step_ms is None:
        return "no step model yet"
    parts = [f"a full step takes {_ms(prediction.step_ms)}"]
    if prediction.ttft_ms is not None:
        parts.append(f"first token after {_ms(prediction.ttft_ms)}")
    if prediction.capacity_rps is not None:
        parts.append(f"{prediction.capacity_rps:.2f} requests/s fit within the SLA")
    return ", ".join(parts)


def _outcome(outcome: ChangeOutcome) -> str:
    """The prediction for the last change, beside what was measured after it."""
    parts = [
        _against("a step", outcome.step_ms, " ms"),
        _against("first token", outcome.ttft_ms, " ms"),
        _against("capacity", outcome.capacity_rps, " requests/s"),
    ]
    told = ", ".join(part for part in parts if part) or "nothing to compare"
    return f"of the change at {clock_time(outcome.of)}, over {outcome.steps} steps: {told}"


def _against(what: str, compared: PredictionCheck | None, unit: str) -> str:
    if compared is None:
        return ""
    return (
        f"{what} {compared.predicted:.4g} predicted, {compared.measured:.4g}{unit} measured "
        f"({compared.error_ratio:+.0%})"
    )


def _limits(limits: TunedLimits | None) -> str:
    if limits is None:
        return "unknown"
    target = "" if limits.step_target_ms is None else f", step {_ms(limits.step_target_ms)}"
    return f"batch {limits.batch_size}, tokens {limits.token_budget}{target}"


def _plain(value: float | str | bool | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ms(value: float) -> str:
    return f"{value:,.0f} ms"
