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
FOLDER = ROOT / "docs" / "runbooks"
RUNBOOKS = sorted(FOLDER.glob("*.md"))
CASES = sorted(Path(__file__).parent.glob("rules*_test.yaml"))


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def sections(page: str) -> dict[str, str]:
    """Read the sections of a page that are named after an alert."""
    _, *parts = re.split(r"^## (.+)$", (FOLDER / page).read_text(), flags=re.MULTILINE)
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: text for name, text in named.items() if name.startswith("Paceline")}


def _page(rule: dict[str, Any]) -> str:
    """Return the file of an alert's runbook."""
    address: str = rule["annotations"]["runbook_url"]
    return address.partition("#")[0].rsplit("/", 1)[1]


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


def test_each_alert_links_its_own_section() -> None:
    """Whoever is woken reads what to do about this alert, wherever it has been sent to."""
    for name, rule in alerts().items():
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address.rsplit("/", 1)[0] == PAGES, name
        # GitHub and the site turn a heading of one word into an anchor by lowering it.
        assert anchor == name.lower(), name
        assert name in sections(_page(rule)), name


def test_no_section_is_about_an_alert_that_is_gone() -> None:
    """And the pages have no alert twice."""
    written = [name for page in RUNBOOKS for name in sections(page.name)]

    assert sorted(written) == sorted(alerts())


@pytest.mark.parametrize("name", sorted(alerts()))
def test_each_section_says_what_it_means_where_to_look_how_to_mend_it_and_when_it_ends(
    name: str,
) -> None:
    """Two things to look at, at least, each with its query or command."""
    text = sections(_page(alerts()[name]))[name]
    _, *parts = re.split(r"^\*\*(\w+):\*\*", text, flags=re.MULTILINE)

    assert parts[::2] == ["Means", "Look", "Mend", "Ends"]
    assert all(part.strip() for part in parts)
    looks = re.findall(r"^- .*`.+`", parts[3], re.MULTILINE)
    assert len(looks) >= 2


def test_prometheus_takes_every_query_of_the_runbooks(tmp_path: Path) -> None:
    """A query that is copied at night has to work, and ask for what is exposed."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    exposed = {*re.findall(r"^\| `(paceline_\w+)` \|", page, re.MULTILINE)}
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    queries = [query for each in RUNBOOKS for query in _queries(each.read_text())]
    asked = {name for query in queries for name in re.findall(r"paceline[_:][\w:]+", query)}
    rules = [{"record": f"q:{n}", "expr": query} for n, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    done = run_promtool("check", "rules", path)

    assert len(queries) > 40
    assert {name.removesuffix("_bucket") for name in asked} <= exposed | recorded
    assert done.returncode == 0, done.stdout + done.stderr


def _queries(page: str) -> list[str]:
    return [code for code in re.findall(r"`([^`]+)`", page) if re.search(r"\bpaceline[_:]", code)]


def test_the_page_lists_every_alert_with_its_severity() -> None:
    """Whoever routes alerts looks there."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(runbooks/([\w-]+\.md)(?:#\w+)?\)(?:\\\*)? \| (\w+) \|",
        page,
        re.MULTILINE,
    )
    listed = {name: (runbook, severity) for name, runbook, severity in rows}

    assert listed == {
        name: (_page(rule), rule["labels"]["severity"]) for name, rule in alerts().items()
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
