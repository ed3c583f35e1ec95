"""The alerts: valid rules, each with a case that fires and one that is silent, and a runbook."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from paceline_testing.run_promtool import run_promtool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
RULES = CHART / "files" / "rules.yaml"
PAGES = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["runbookBaseUrl"]
CASES = sorted(Path(__file__).parent.glob("rules*_test.yaml"))


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.mark.parametrize(
    "command", [["check", "rules", RULES], ["test", "rules", *CASES]], ids=["rules", "cases"]
)
def test_promtool_agrees(command: list[str | Path]) -> None:
    """Prometheus's own tool checks the rules and runs the cases."""
    done = run_promtool(*command)

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    """An alert that cannot fire, or always does, is worse than none."""
    fires: set[str] = set()
    silent: set[str] = set()
    tests = [test for path in CASES for test in yaml.safe_load(path.read_text())["tests"]]
    for test in tests:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])

    assert fires == set(alerts())
    assert silent == set(alerts())


def test_each_alert_links_a_runbook_that_exists() -> None:
    """Whoever is woken reads what to do, wherever the alert has been sent to."""
    for name, rule in alerts().items():
        base, page = rule["annotations"]["runbook_url"].rsplit("/", 1)
        assert base == PAGES, name
        assert name in (ROOT / "docs" / "runbooks" / page).read_text(), name


def test_the_page_lists_every_alert_with_its_severity() -> None:
    """Whoever routes alerts looks there."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(runbooks/([\w-]+\.md)\)(?:\\\*)? \| (\w+) \|", page, re.MULTILINE
    )
    listed = {name: (runbook, severity) for name, runbook, severity in rows}

    assert listed == {
        name: (rule["annotations"]["runbook_url"].rsplit("/", 1)[1], rule["labels"]["severity"])
        for name, rule in alerts().items()
    }


def test_a_team_may_keep_the_runbooks_elsewhere() -> None:
    """One value moves the link of every alert, and its default is where the pages are."""
    monitoring = {"prometheusRule": True, "runbookBaseUrl": "https://wiki.test/paceline"}
    texts = Chart.load(CHART).render({"monitoring": monitoring}, name="pl", namespace="system")
    objects = [*yaml.safe_load_all(texts["paceline/templates/monitoring.yaml"])]
    (rules,) = [found for found in objects if found and found["kind"] == "PrometheusRule"]
    links = {
        rule["annotations"]["runbook_url"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }

    assert PAGES.startswith(yaml.safe_load((CHART / "Chart.yaml").read_text())["home"])
    assert links
    assert all(link.startswith("https://wiki.test/paceline/") for link in links)
    assert {link.rsplit("/", 1)[1] for link in links} == {
        rule["annotations"]["runbook_url"].rsplit("/", 1)[1] for rule in alerts().values()
    }
