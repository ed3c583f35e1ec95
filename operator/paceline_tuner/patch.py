"""The body of a PATCH: new limits, new hot configuration, or a longer lease."""

from dataclasses import asdict

from msgspec import UNSET

from paceline_tuner.decision import Decision
from paceline_tuner.service_spec import SLA, AdmissionLimits, TuningSpec
from paceline_tuner.telemetry import LimitsAnswer
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start_entry import WarmStartEntry

_BIN_TOKENS = 128  # where coefficients name no bins

_MAX_REASON = 1000  # characters; the sidecar refuses more
LEASE_S = 60.0
_SPARE_S = 35.0


def patch_body(spec: TuningSpec, limits: LimitsAnswer, decision: Decision) -> dict[str, object]:
    """Name all that differs under the next epoch; where nothing does, only a longer lease."""
    body: dict[str, object] = {}
    if decision.applied and decision.chosen is not None and decision.chosen != decision.current:
        body.update(_limits(decision.chosen))
        if limits.requested.pace_tpot_ms is not UNSET:
            # An engine that does not know the field refuses the change that names it.
            body["pace_tpot_ms"] = decision.chosen.pace_tpot_ms
        if limits.reason is not UNSET:
            body["reason"] = decision.reason[:_MAX_REASON]
    if decision.applied and decision.start is not None:
        body["coefficients"] = _coefficients(decision.start.coefficients)
    if (limits.config_hash or "") != spec.config_hash or _lacks_classes(spec, limits):
        knows = limits.admission.max_items_per_request is not UNSET
        knows_classes = limits.sla.ttft_by_prompt_tokens is not UNSET
        body.update(_configuration(spec, knows_newer=knows, knows_classes=knows_classes))
        if limits.requested.batch_step_target_ms is not UNSET:
            batch_sla = spec.batch_sla
            body["batch_sla"] = (
                None
                if batch_sla is None
                else sla_body(batch_sla, knows_e2e=knows, knows_classes=knows_classes)
            )
    if decision.is_proven and not body and limits.certified != limits.requested:
        body["certified"] = True
    return {
        **body,
        **_capacity(limits, decision),
        **_tuner(limits, decision),
        "epoch": limits.epoch + bool(body),
        "lease_s": LEASE_S,
    }


def _capacity(limits: LimitsAnswer, decision: Decision) -> dict[str, object]:
    """Tell λ*, which the pod's answers report to gateways: it is no limit, and no change of one."""
    capacity_rps = decision.prediction.capacity_rps
    if limits.capacity_rps is UNSET or not capacity_rps:
        return {}
    return {"capacity_rps": capacity_rps}


def _tuner(limits: LimitsAnswer, decision: Decision) -> dict[str, object]:
    """Tell what the pod's live page shows of the tuner beside the limits."""
    if limits.tuner is UNSET:
        return {}
    said = {"phase": decision.phase, "verdict": decision.verdict, "binding": decision.binding}
    return {"tuner": said}


def renewal(limits: LimitsAnswer, decision: Decision) -> dict[str, object]:
    """Renew the lease and change nothing."""
    return {**_tuner(limits, decision), "epoch": limits.epoch, "lease_s": LEASE_S}


def is_renewal(body: dict[str, object], limits: LimitsAnswer) -> bool:
    """Whether the body changes nothing."""
    return body["epoch"] == limits.epoch


def lease_lasts(limits: LimitsAnswer, interval_s: float) -> bool:
    """Whether the lease outlives the next round by far, so that this one need not renew it.

    What is left must also cover an operator that starts anew, or another that takes its place.
    """
    left_s = limits.lease_expires_s
    return left_s is not None and not limits.lease_lost and left_s >= interval_s + _SPARE_S


def _limits(limits: TunedLimits) -> dict[str, object]:
    return {
        "max_batch_size": limits.batch_size,
        "token_budget": limits.token_budget,
        "step_target_ms": limits.step_target_ms,
    }


def _coefficients(entry: WarmStartEntry) -> dict[str, object]:
    coefficients: dict[str, object] = {
        "theta": entry.theta,
        "knee": entry.knee,
        "correction": entry.correction,
    }
    # Left out it is 128: an engine that knows of no other bins must not refuse the rest.
    if entry.bin_tokens != _BIN_TOKENS:
        coefficients["bin_tokens"] = entry.bin_tokens
    return coefficients


def admission_body(admission: AdmissionLimits, *, knows_keys: bool) -> dict[str, object]:
    """Write `admission`; a pod of before 0.3 refuses the newer fields, and has what is default."""
    wanted, default = asdict(admission), asdict(AdmissionLimits())
    kept = {"max_queued_requests", "max_queued_tokens", "reject_at", "request_timeout_s"}
    kept.add("shed_hopeless")
    return {
        name: value
        for name, value in wanted.items()
        if knows_keys or name in kept or value != default[name]
    }


def _lacks_classes(spec: TuningSpec, limits: LimitsAnswer) -> bool:
    """Tell whether a pod knows of targets by prompt length, and holds others than are declared.

    The file that a pod starts from has none, so that any sidecar can read it.
    """
    if limits.sla.lacks(spec.sla):
        return True
    held, wanted = limits.batch_sla, spec.batch_sla
    return held is not None and wanted is not None and held.lacks(wanted)


def sla_body(sla: SLA, *, knows_e2e: bool, knows_classes: bool = False) -> dict[str, object]:
    """Write `sla`; a pod of before 0.3 refuses the end-to-end target, and has none.

    A pod that knows one TTFT target for all prompts gets the loosest, which refuses nobody who
    could still be served in time.
    """
    wanted = asdict(sla)
    if not knows_classes:
        del wanted["ttft_by_prompt_tokens"]
    if not knows_e2e and sla.e2e_p99_ms is None:
        del wanted["e2e_p99_ms"]
    return wanted


def _configuration(
    spec: TuningSpec, *, knows_newer: bool, knows_classes: bool
) -> dict[str, object]:
    adapters: dict[str, object] = {}
    if spec.adapters is not None:
        adapters["adapters"] = [asdict(adapter) for adapter in spec.adapters]
    return {
        **adapters,
        "sla": sla_body(spec.sla, knows_e2e=knows_newer, knows_classes=knows_classes),
        "admission": admission_body(spec.admission, knows_keys=knows_newer),
        "interactive_share": spec.interactive_share,
        "batch_share": spec.batch_share,
        "config_hash": spec.config_hash,
    }
