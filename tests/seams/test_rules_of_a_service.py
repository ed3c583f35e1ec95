"""The alerts that the operator writes for one service are the chart's, for that service."""

from pathlib import Path
from typing import Any

import yaml

from paceline_api.inference_service import InferenceService
from paceline_operator.render.extras import extras
from paceline_testing.run_promtool import run_promtool
from paceline_testing.services import a_live_service

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline" / "files" / "rules.yaml"
CASES = sorted((ROOT / "tests" / "chart").glob("rules*_test.yaml"))


def _groups() -> list[dict[str, Any]]:
    """As rendered for the service that the chart's cases speak of."""
    live = a_live_service("chat", monitoring={"rules": True})
    live["metadata"]["namespace"] = "ml"
    rendered = extras(InferenceService.read(live))["PrometheusRule", "chat"] or {}
    groups: list[dict[str, Any]] = rendered["spec"]["groups"]
    return groups


def _alerts(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name each alert with all that a person sees of it."""
    return {
        rule["alert"]: {name: rule.get(name) for name in ("for", "labels", "annotations")}
        for group in groups
        for rule in group["rules"]
        if "alert" in rule
    }


def test_the_alerts_are_the_charts() -> None:
    """Same name, same words, same runbook: Alertmanager takes two of them for one."""
    chart, own = _alerts(yaml.safe_load(CHART.read_text())["groups"]), _alerts(_groups())

    assert own
    assert own == {name: chart[name] for name in own}


def test_they_fire_and_are_silent_where_the_charts_are(tmp_path: Path) -> None:
    """By the chart's own cases."""
    own = _alerts(_groups())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": _groups()}))
    fires: set[str] = set()
    for path in CASES:
        cases = yaml.safe_load(path.read_text())
        cases["rule_files"] = ["rules.yaml"]
        cases["tests"] = [
            test
            for test in cases["tests"]
            if all(case["alertname"] in own for case in test["alert_rule_test"])
        ]
        fires |= {case["alertname"] for test in cases["tests"] for case in test["alert_rule_test"]}
        (tmp_path / path.name).write_text(yaml.safe_dump(cases))

    done = run_promtool("test", "rules", *tmp_path.glob("*_test.yaml"))

    assert fires == own.keys()
    assert done.returncode == 0, done.stdout + done.stderr
