"""A candidate is the declared policy with a few things changed."""

from paceline_tuner.experiment.policy import overridden, policy_of, rollout_name, under
from paceline_tuner.service_spec import SLA, Overrides, Policy, Range, TuningSpec

DECLARED = Policy("Auto", 1.0, Range(4, 32, 16), Range(64, 2048))


def test_what_is_not_named_stays() -> None:
    """An override of nothing is the declared policy."""
    assert overridden(DECLARED, Overrides()) == DECLARED


def test_named_fields_are_replaced() -> None:
    """Mode, margin and bounds."""
    found = overridden(
        DECLARED, Overrides("Observe", 0.95, max_batch_size=64, min_token_budget=128)
    )

    assert found == Policy("Observe", 0.95, Range(4, 64, 16), Range(128, 2048))


def test_the_other_bound_gives_way() -> None:
    """Bounds and the start value stay in order, or the guards would contradict each other."""
    assert overridden(DECLARED, Overrides(max_batch_size=2)).batch_size == Range(2, 2, 2)
    assert overridden(DECLARED, Overrides(min_batch_size=48)).batch_size == Range(48, 48, 48)


def test_a_spec_takes_a_policy_and_gives_it_back() -> None:
    """Targets and the hash that pods acknowledge are not part of it."""
    spec = TuningSpec(sla=SLA(ttft_p99_ms=500.0), config_hash="one")

    changed = under(spec, DECLARED)

    assert policy_of(changed) == DECLARED
    assert under(changed, policy_of(spec)) == spec


def test_a_policy_names_its_rollout() -> None:
    """The same policy is not tried twice; another one is."""
    other = overridden(DECLARED, Overrides(max_batch_size=8))

    assert rollout_name(DECLARED) == rollout_name(overridden(DECLARED, Overrides()))
    assert rollout_name(DECLARED) != rollout_name(other)
