"""The reason and the inputs of a decision, in words and numbers for people."""

from dataclasses import dataclass

from paceline_tuner.balance import Balance
from paceline_tuner.decision import ReasonSubject
from paceline_tuner.drift import Signal
from paceline_tuner.pod_view import PodView
from paceline_tuner.propose import LimitsProposal
from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.tuned_limits import TunedLimits

_SIGNALS: dict[Signal, str] = {
    "rate": "the rate of arrivals",
    "prompt": "the length of prompts",
    "output": "the length of outputs",
    "prefix": "the share of cached prefixes",
    "device": "the device's speed",
}
_WORDS = {
    "SLA:itl": "the ITL target",
    "SLA:tpot": "the TPOT target",
    "SLA:e2e": "the end-to-end target",
    "KV": "KV memory",
    "Capacity": "the capacity allocated at start",
    "Bounds": "the declared bounds",
    "None": "no target",
    "Remembered": "what is remembered",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why limits are as they are, in words, and which of them the words explain."""

    text: str
    subject: ReasonSubject = "Both"


def reason_of(view: PodView, proposal: LimitsProposal, chosen: TunedLimits) -> Reason:
    """Say why these limits, with the prediction behind them.

    Where the step model chooses, the reason names what bounds the batch size alone.
    """
    spec, state, model = view.spec, view.state, view.evidence.model
    if spec.paused:
        return Reason("paused: limits are held")
    if spec.mode == "Fixed":
        return Reason("fixed: the declared initial limits hold")
    bound = _WORDS.get(proposal.binding, proposal.binding)
    target = view.target.ms
    pace = f"; steps are paced to {target:.1f} ms" if target is not None else ""
    if view.target.pace_tpot_ms is not None:
        pace = f"; requests are paced to {view.target.pace_tpot_ms:.1f} ms a token"
    trimmed = f", {1 - state.trim:.0%} trimmed by feedback" if state.trim < 1 else ""
    if view.is_learning:
        within = ", within remembered limits" if state.started is not None else ""
        since = " and what it measured at its start" if model.origin == "profile" else ""
        return Reason(f"learning the step time from its first steps{since}{within}{pace}")
    if not view.is_trusted:
        why = "too many slow gaps" if view.is_missing_pace else "pace is kept"
        return Reason(f"step model untrusted ({model.reason}), by trial: {why}{pace}{trimmed}")
    if view.target.is_below_floor:
        floor = view.capacity_model.floor_ms()
        return Reason(f"one decode alone takes {floor:.1f} ms, over the target{pace}")
    if view.target.balance is not None and target is not None:
        pace = f"{pace} ({_weighed(view.target.balance)})"
    predicted = view.capacity_model.full_step_ms(chosen.batch_size) * model.q_r
    return Reason(
        f"{_changed(view)}{bound} binds: a step with {chosen.batch_size} running is predicted to "
        f"take up to {predicted:.1f} ms{pace}{trimmed}",
        "BatchSize",
    )


def _weighed(balance: Balance) -> str:
    """Say how the step target was weighed: late gaps against late first tokens."""
    return (
        f"{balance.missed:.1%} of requests are expected to miss by their gaps, and the shorter "
        f"steps cost {max(0.0, 1 - balance.served):.0%} of the capacity"
    )


def _changed(view: PodView) -> str:
    """Name what is new about the load or the device; empty where nothing is."""
    drift = view.state.drift
    if drift.tripped:
        return f"{' and '.join(_SIGNALS[name] for name in drift.tripped)} changed; "
    slowdown = view.state.slowdown
    if slowdown.is_slow:
        return f"steps take {slowdown.ratio:.2f} times as long as they did on this device; "
    return ""


def _promised(observed: MeasuredLatency) -> dict[str, float | int | str | bool | None]:
    """List the quantile that the objective asks for, where it is not the 99th."""
    own = observed.at_objective
    if own is None:
        return {}
    return {
        f"ttft_{own.name}_ms": own.ttft_ms,
        f"tpot_{own.name}_ms": own.tpot_ms,
        f"itl_{own.name}_ms": own.itl_ms,
        f"e2e_{own.name}_ms": own.e2e_ms,
    }


def _by_prompt_tokens(observed: MeasuredLatency) -> dict[str, float | int | str | bool | None]:
    """List what was measured of each class of prompts, such as `ttft_1-2000_ms`."""
    found: dict[str, float | int | str | bool | None] = {}
    for each in observed.by_prompt_tokens:
        found[f"ttft_{each.name}_ms"] = each.ttft_ms
        found[f"ttft_{each.name}_missed"] = each.missed
        found[f"ttft_{each.name}_samples"] = each.requests
    return found


def inputs_of(view: PodView) -> dict[str, float | int | str | bool | None]:
    """List what the decision was made from."""
    evidence, demand, model = view.evidence, view.state.demand, view.evidence.model
    return {
        "epoch": evidence.limits.epoch,
        "running": evidence.load.running,
        "waiting": evidence.load.waiting,
        "waiting_tokens": evidence.load.waiting_tokens,
        "kv_used_blocks": evidence.load.kv_used_blocks,
        "arrival_rps": demand.arrival_rps,
        "prompt_tokens": demand.prompt,
        "prompt_tokens_p99": demand.prompt_p99,
        "output_tokens": demand.output,
        "output_tokens_high": demand.output_high,
        "context_tokens": demand.context,
        "ttft_p99_ms": view.observed.ttft_p99_ms,
        "tpot_p99_ms": view.observed.tpot_p99_ms,
        "itl_p99_ms": view.observed.itl_p99_ms,
        "e2e_p99_ms": view.observed.e2e_p99_ms,
        **_promised(view.observed),
        **_by_prompt_tokens(view.observed),
        "samples": view.observed.samples,
        "attainment": view.observed.attainment,
        "missing_pace": view.is_missing_pace,
        "model_valid": model.valid,
        "model_reason": model.reason,
        "model_mape": model.mape,
        "model_samples": model.samples,
        "model_origin": model.origin,
        "q_r": model.q_r,
        "fast": model.fast,
        "changed": " ".join(view.state.drift.tripped) or None,
        "degraded_hardware": view.state.slowdown.is_slow,
        "slowdown": view.state.slowdown.ratio,
        "trim": view.state.trim,
        "step_target_ms": view.target.ms,
        "pace_tpot_ms": view.target.pace_tpot_ms,
        "late_share": view.target.balance.missed if view.target.balance else None,
        "capacity_share": view.target.balance.served if view.target.balance else None,
        "e2e_token_ms": room.queued_ms if (room := view.capacity_model.room) else None,
    }
