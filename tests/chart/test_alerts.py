"""The alerts: valid rules, each with a case that fires and one that is silent, and a runbook."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.debian import debian_program
from local_cluster.errors import UnavailableError

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "paceline" / "files" / "rules.yaml"
CASES = Path(__file__).parent / "rules_test.yaml"


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.mark.parametrize("command", [["check", "rules", RULES], ["test", "rules", CASES]], ids=str)
def test_promtool_agrees(command: list[str | Path]) -> None:
    """Prometheus's own tool checks the rules and runs the cases."""
    try:
        tool = debian_program("prometheus", "promtool")
    except UnavailableError as lack:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(lack))

    done = subprocess.run([tool, *command], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    """An alert that cannot fire, or always does, is worse than none."""
    fires: set[str] = set()
    silent: set[str] = set()
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])

    assert fires == set(alerts())
    assert silent == set(alerts())


def test_each_alert_links_a_runbook_that_exists() -> None:
    """Whoever is woken reads what to do."""
    for name, rule in alerts().items():
        page = ROOT / rule["annotations"]["runbook_url"]
        assert page.is_file(), name
        assert name in page.read_text(), name
