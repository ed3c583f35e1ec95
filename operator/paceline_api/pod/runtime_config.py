"""The hot configuration that a pod starts from, before anybody has tuned it."""

import dataclasses
from typing import Any

from paceline_tuner.lanes import starting_batch_target_ms
from paceline_tuner.patch import admission_body, sla_body
from paceline_tuner.service_spec import Range, TuningSpec
from paceline_tuner.step_target import starting_target_ms


def runtime_config(spec: TuningSpec) -> dict[str, Any]:
    """Build a `PATCH /runtime/limits` body without an epoch, with the limits of a fresh pod."""
    lanes: dict[str, Any] = {}
    if spec.batch_sla is not None:
        lanes["batch_sla"] = sla_body(spec.batch_sla, knows_e2e=False)
        if spec.mode == "Auto":
            lanes["batch_step_target_ms"] = starting_batch_target_ms(spec)
    adapters: dict[str, Any] = {}
    if spec.adapters is not None:
        adapters["adapters"] = [dataclasses.asdict(adapter) for adapter in spec.adapters]
    return {
        **lanes,
        **adapters,
        "max_batch_size": _start(spec.batch_size),
        "token_budget": _start(spec.token_budget),
        # Another mode leaves the pace to its user.
        "step_target_ms": starting_target_ms(spec.sla) if spec.mode == "Auto" else None,
        "interactive_share": spec.interactive_share,
        "batch_share": spec.batch_share,
        "sla": sla_body(spec.sla, knows_e2e=False),
        # Images are older than the operator where an upgrade has left them as they are.
        "admission": admission_body(spec.admission, knows_keys=False),
        "config_hash": spec.config_hash,
    }


def _start(bounds: Range) -> int | None:
    return bounds.max if bounds.initial is None else bounds.initial
