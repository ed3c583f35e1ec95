"""A policy out of a spec, and back into the spec of one pod."""

import hashlib
from dataclasses import replace
from functools import lru_cache

from paceline_tuner.service_spec import Overrides, Policy, Range, TuningSpec


def policy_of(spec: TuningSpec) -> Policy:
    """Read the part of a spec that says how limits are chosen."""
    return Policy(
        mode=spec.mode,
        step_margin=spec.step_margin,
        batch_size=spec.batch_size,
        token_budget=spec.token_budget,
    )


def under(spec: TuningSpec, policy: Policy) -> TuningSpec:
    """Give the spec another policy; targets, admission and the rest stay."""
    if policy_of(spec) == policy:
        return spec
    return replace(
        spec,
        mode=policy.mode,
        step_margin=policy.step_margin,
        batch_size=policy.batch_size,
        token_budget=policy.token_budget,
    )


def overridden(policy: Policy, overrides: Overrides) -> Policy:
    """Change what the overrides name."""
    margin = overrides.step_margin
    return Policy(
        mode=overrides.mode or policy.mode,
        step_margin=policy.step_margin if margin is None else margin,
        batch_size=_range(policy.batch_size, overrides.min_batch_size, overrides.max_batch_size),
        token_budget=_range(
            policy.token_budget, overrides.min_token_budget, overrides.max_token_budget
        ),
    )


@lru_cache(maxsize=256)
def rollout_name(policy: Policy) -> str:
    """Name the rollout of a declared policy: the same policy has the same name."""
    return f"rollout-{hashlib.sha256(repr(policy).encode()).hexdigest()[:10]}"


def _range(bounds: Range, low: int | None, high: int | None) -> Range:
    """Move the ends that are named; the other end and `initial` give way where they must."""
    top = bounds.max if high is None else high
    bottom = bounds.min if low is None else low
    if top is not None and bottom > top:
        bottom, top = (bottom, bottom) if high is None else (top, top)
    initial = bounds.initial
    if initial is not None:
        initial = max(bottom, initial if top is None else min(initial, top))
    return Range(min=bottom, max=top, initial=initial)
