"""`paceline explain` gives each decision with its inputs, prediction, limits and reason."""

import os
from dataclasses import replace
from typing import Any

import pytest

from paceline_cli.explain.decisions import explain_state
from paceline_cli.explain.service_status import explain_status
from paceline_cli.local_state import Explained, LocalState
from paceline_testing.reports import a_report, an_explained
from paceline_testing.services import a_live_service
from paceline_tuner.service_report import ChangeOutcome, MeasuredClass, PredictionCheck
from paceline_tuner.service_spec import SLA


def a_state(*decisions: Explained) -> LocalState:
    return LocalState(
        name="quickstart",
        url="http://127.0.0.1:8000",
        model="quickstart",
        manifest="service.yaml",
        pid=os.getpid(),
        started_at=0.0,
        sla=SLA(itl_p99_ms=400.0),
        report=a_report(),
        decisions=decisions,
    )


def test_a_decision_is_told_from_inputs_to_reason() -> None:
    """Every number that decided, and the sentence."""
    text = explain_state(a_state(an_explained()), None, last=3)

    for part in (
        "pod/quickstart-0  mode Auto",
        "running 4, arrival_rps 1.235, itl_p99_ms 812\n",
        "a full step takes 290 ms, first token after 1,500 ms, 2.50 requests/s fit",
        "batch 32, tokens 2048 → batch 32, tokens 160, step 320 ms\n",
        "batch 32, tokens 150, step 310 ms, before the guards",
        "SLA:itl",
        "Violating (Tracking)",
        "the ITL target binds",
        "tokens 2048 → 160: ITL binds",
    ):
        assert part in text


def test_what_was_only_computed_is_told_as_such() -> None:
    """Mode Observe changes nothing."""
    text = explain_state(a_state(an_explained(applied=False, mode="Observe")), None, last=1)

    assert "step 320 ms, not applied: mode Observe" in text


def test_only_the_newest_decisions_of_the_asked_pod_are_told() -> None:
    """In the order in which they were taken."""
    decisions = [
        an_explained(at=float(index), pod=name, reason=f"{name} {index}")
        for index in range(4)
        for name in ("a", "b")
    ]

    text = explain_state(a_state(*decisions), "b", last=2)

    assert "pod/a" not in text
    assert text.index("b 2") < text.index("b 3")
    assert "b 1" not in text


def test_without_a_decision_it_says_so() -> None:
    """The service may have started just now."""
    assert "no decision yet about x" in explain_state(a_state(), "x", last=3)


def test_a_service_in_a_cluster_is_explained_from_its_status() -> None:
    """Status holds the last decision of each pod, in the API's own words."""
    resource: dict[str, Any] = {
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {"model": {"uri": "builtin://m"}, "sla": {"itl": {"p99": "400ms"}}},
        "status": {
            "conditions": [
                {
                    "type": "SLAMet",
                    "status": "True",
                    "reason": "Meeting",
                    "message": "every target is met",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "tuning": {
                "pods": [
                    {"name": "chat-1", "batchSize": 16, "tokenBudget": 128, "reason": "ITL binds"},
                    {"name": "chat-2", "batchSize": 8, "tokenBudget": 64, "reason": "KV binds"},
                ],
                "history": [
                    {
                        "time": "2026-01-01T00:00:00Z",
                        "pod": "chat-1",
                        "from": "32/2048",
                        "to": "16/128",
                        "reason": "ITL binds",
                    }
                ],
            },
        },
    }

    text = explain_status(resource, "chat-1")

    assert "SLAMet=True" in text
    assert "batch 16, tokens 128" in text
    assert "32/2048 → 16/128: ITL binds" in text
    assert "chat-2" not in text


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({}, "TTFT p99 900ms, TPOT p99 80.0ms, E2E p99 5000ms"),
        (
            {
                "atObjective": {
                    "quantile": "0.95",
                    "ttft": "700ms",
                    "tpot": "70.0ms",
                    "e2e": "4000ms",
                }
            },
            "TTFT p95 700ms, TPOT p95 70.0ms, E2E p95 4000ms",
        ),
    ],
    ids=["99", "95"],
)
def test_the_quantile_of_the_objective_is_told(own: dict[str, Any], told: str) -> None:
    """A p99 beside an objective of 0.95 would tell of nothing that was promised."""
    pod = {"name": "chat-1", "ttftP99": "900ms", "tpotP99": "80.0ms", "e2eP99": "5000ms"} | own

    text = explain_status(a_live_service() | {"status": {"tuning": {"pods": [pod]}}}, "chat-1")

    assert told in text


def test_each_class_of_prompts_is_told_with_its_verdict() -> None:
    """From the state of a local service, and from the status of one in a cluster."""
    measured = (
        MeasuredClass(1, 2000, 500.0, 812.0, 50, 5, "Violating"),
        MeasuredClass(2001, None, 5000.0, None, 0, 0, "Idle"),
    )
    observed = replace(a_report().observed, by_prompt_tokens=measured)
    state = replace(a_state(), report=replace(a_report(), observed=observed))
    classes = [
        {"promptTokens": "1-2000", "target": "500ms", "ttft": "812ms", "requests": 50,
         "attainment": "0.900", "verdict": "Violating"},
        {"promptTokens": "2001-", "target": "5000ms", "requests": 0, "verdict": "Idle"},
    ]  # fmt: skip
    sla = {"ttftByPromptTokens": classes, "batch": {"ttftByPromptTokens": classes[1:]}}

    local = explain_state(state, None, last=1)
    live = explain_status({**a_live_service(), "status": {"sla": sla}}, None)

    assert "1-2000 tokens: Violating, 812 ms of 500 ms, 45 of 50 requests in time" in local
    assert "2001- tokens: Idle, none of 5,000 ms, 0 of 0 requests in time" in local
    assert "1-2000 tokens: Violating, 812ms of 500ms, 0.900 of 50 requests in time" in live
    assert "2001- tokens of the batch lane: Idle, none of 5000ms" in live
    assert "by prompt length" not in explain_state(a_state(), None, last=1)


def test_adapters_are_told_with_their_refusals() -> None:
    """How many pods serve each, and why others do not."""
    manifest = a_live_service(
        engine={"lora": {"maxAdapters": 2}}, adapters=[{"name": "sql", "uri": "file:///a"}]
    )
    refused = {"name": "sql", "loadedPods": 1, "pods": 2, "message": "The adapter's rank is 64."}

    text = explain_status(manifest | {"status": {"adapters": [refused]}}, None)

    assert "sql: on 1 of 2 pods; refused: The adapter's rank is 64." in text


def test_what_became_of_a_change_is_told() -> None:
    """Predicted and measured side by side, with how far apart they are."""
    outcome = ChangeOutcome(
        of=1_700_000_000.0, steps=40, step_ms=PredictionCheck(290.0, 320.0, 0.1034)
    )

    text = explain_state(a_state(an_explained(outcome=outcome)), None, last=1)

    assert "over 40 steps: a step 290 predicted, 320 ms measured (+10%)" in text
