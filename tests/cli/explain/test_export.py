"""The tuned limits become a Fixed manifest that says why."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_api.validate import validate
from paceline_cli.errors import LocalError
from paceline_cli.explain.export import TunedPod, fixed_manifest, tuned_here, tuned_in_cluster
from paceline_cli.local_state import Explained, LocalState
from paceline_cli.manifest import declared
from paceline_testing.quickstart import QUICKSTART
from paceline_testing.reports import a_report, an_explained
from paceline_tuner.service_spec import SLA


def a_pod(**changes: Any) -> TunedPod:
    fields: dict[str, Any] = {
        "name": "q-0",
        "batch_size": 12,
        "token_budget": 160,
        "reason": "ITL: binds\nso",
    }
    return TunedPod(**(fields | changes))


def test_limits_are_held_and_everything_else_stays() -> None:
    """Each with its reason above it; what Fixed does not hold is said."""
    manifest = declared(QUICKSTART)

    text = fixed_manifest(manifest, [a_pod(binding="SLA:itl", step_target_ms=320.0)])

    made = yaml.safe_load(text)
    assert made["spec"].pop("tuning") == {
        "mode": "Fixed",
        "batchSize": {"initial": 12},
        "tokenBudget": {"initial": 160},
    }
    assert made["spec"] == {k: v for k, v in manifest["spec"].items() if k != "tuning"}
    lines = text.splitlines()
    assert "ITL: binds so (binding: SLA:itl)" in lines[lines.index("    batchSize:") - 1]
    told = lines[lines.index("    tokenBudget:") - 1]
    assert "one reason for both limits: ITL: binds so (binding: SLA:itl)" in told
    assert "320 ms, which Fixed does not hold" in lines[-1]


def above(text: str, key: str) -> str:
    lines = text.splitlines()
    return lines[lines.index(f"    {key}:") - 1]


def test_each_limit_has_its_own_reason() -> None:
    """The reason names what bounds the batch; the step target bounds the budget."""
    decided = an_explained(inputs={"step_target_ms": 310.0, "pace_tpot_ms": None})
    (pod,) = tuned_here(a_state(decided), None)

    text = fixed_manifest(declared(QUICKSTART), [pod])

    assert "the ITL target binds (binding: SLA:itl)" in above(text, "batchSize")
    budget = above(text, "tokenBudget")
    assert "The newest proposal is 150: the most that a step paced to 310 ms holds" in budget
    assert "hold 160." in budget
    assert "ITL" not in budget


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "paused: limits are held", "reason_subject": "Both"},
        {"reason": "the ITL target binds", "reason_subject": ""},
    ],
    ids=["of both", "an older service, which does not say"],
)
def test_one_reason_for_both_limits_is_said_to_be_one(changes: dict[str, Any]) -> None:
    """Nothing is made up for the budget where the records tell nothing of it alone."""
    inputs = {"step_target_ms": 310.0, "pace_tpot_ms": None}
    (pod,) = tuned_here(a_state(an_explained(inputs=inputs, **changes)), None)

    budget = above(fixed_manifest(declared(QUICKSTART), [pod]), "tokenBudget")

    assert f"one reason for both limits: {changes['reason']}" in budget


def test_a_limit_at_its_bound_says_so() -> None:
    """The quickstart's engine has room for 32 sequences; 160 tokens are declared as a minimum."""
    manifest = declared(QUICKSTART)
    manifest["spec"]["tuning"] = {"tokenBudget": {"min": 160}}

    text = fixed_manifest(manifest, [a_pod(batch_size=32)])

    assert "It is all that engine.capacity has. ITL: binds so" in above(text, "batchSize")
    assert "It is at the declared min." in above(text, "tokenBudget")


def test_other_settings_of_the_tuner_and_bounds_are_kept() -> None:
    """A bound that the limits lie beyond moves to them, else the manifest would be refused."""
    manifest = declared(QUICKSTART)
    manifest["spec"]["tuning"] = {
        "mode": "Auto",
        "interval": "10s",
        "batchSize": {"min": 2, "max": 8, "initial": 4},
    }

    tuning = yaml.safe_load(fixed_manifest(manifest, [a_pod()]))["spec"]["tuning"]

    assert tuning["interval"] == "10s"
    assert tuning["batchSize"] == {"min": 2, "max": 12, "initial": 12}


def test_what_the_cluster_wrote_is_left_out() -> None:
    """The file is for git."""
    resource = declared(QUICKSTART) | {"metadata": {
        "name": "q", "namespace": "team", "uid": "u", "resourceVersion": "7",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }}  # fmt: skip
    resource["status"] = {"tuning": {"pods": [
        {"name": "q-0", "batchSize": 12, "tokenBudget": 160, "reason": "so"},
        {"name": "q-1"},
    ]}}  # fmt: skip

    text = fixed_manifest(resource, tuned_in_cluster(resource, None))

    assert yaml.safe_load(text)["metadata"] == {"name": "q", "namespace": "team"}
    assert "status" not in text
    assert validate(yaml.safe_load(text)).spec.tuning.mode == "Fixed"


def test_pods_that_differ_have_to_be_named() -> None:
    """One manifest holds one pair of limits."""
    with pytest.raises(LocalError, match=r"pod/b has batch 4"):
        fixed_manifest(declared(QUICKSTART), [a_pod(), a_pod(name="b", batch_size=4)])


def test_nothing_chosen_is_nothing_to_export() -> None:
    """A service may have started just now."""
    with pytest.raises(LocalError, match="nothing to export"):
        fixed_manifest(declared(QUICKSTART), [])


def a_state(*decisions: Explained) -> LocalState:
    return LocalState(
        name="q", url="u", model="m", manifest=str(Path("m.yaml")), pid=1, started_at=0.0,
        sla=SLA(), report=a_report(), decisions=decisions,
    )  # fmt: skip


def test_a_local_service_gives_its_newest_limits() -> None:
    """By pod; the older decision is history."""
    state = a_state(an_explained(at=1.0), an_explained(at=2.0))

    (pod,) = tuned_here(state, None)

    assert (pod.batch_size, pod.token_budget, pod.step_target_ms) == (32, 160, 320.0)
    assert tuned_here(state, "other") == []
