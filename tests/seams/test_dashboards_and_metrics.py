"""The dashboards ask for metrics and labels that the processes expose, in valid PromQL."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from local_cluster.errors import UnavailableError
from local_cluster.promtool import promtool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))

ROW = re.compile(r"^\| `(paceline_[a-z0-9_]+)` \| (\w+) \| [^|]* \| ([^|]*) \|", re.MULTILINE)
NAME = re.compile(r"\b(?:paceline_[a-z0-9_]+|paceline:[a-z0-9_:]+)")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
LEGEND = re.compile(r"{{(\w+)}}")
SHOWN = {
    "paceline_limit_effective",
    "paceline_tuner_last_change_timestamp_seconds",
    "paceline_waiting_requests",
    "paceline_oldest_waiting_seconds",
    "paceline_step_sequences_bucket",
    "paceline_steps_seconds_total",
    "paceline_kv_used_ratio",
    "paceline_padding_tokens_total",
    "paceline_preemptions_total",
    "paceline_prefix_hit_tokens_total",
    "paceline_sla_requests_total",
    "paceline_capacity_utilization",
}
SCRAPED = {"namespace", "pod", "le"}
"""What a scrape and a histogram add."""


def exposed() -> dict[str, set[str]]:
    """Labels by sample, as docs/metrics.md lists them; other tests hold the page to the truth."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in ROW.findall((ROOT / "docs" / "metrics.md").read_text()):
        suffix = "_bucket" if kind == "histogram" else ""
        found[name + suffix] = {label.strip("` ") for label in labels.split(",") if label.strip()}
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    recorded = {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    return found | {key: {"model_name"} for key in recorded}


def panels(dashboard: Path) -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of every target, and of every annotation."""
    whole = json.loads(dashboard.read_text())
    for panel in _panels(whole):
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for note in whole.get("annotations", {"list": []})["list"]:
        yield note["name"], note["target"]["expr"], note["titleFormat"] + note["textFormat"]


def _panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Leave the headings of rows out."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_asks_for_what_is_exposed(dashboard: Path) -> None:
    """A renamed metric or label would leave a panel empty for ever."""
    known = exposed()
    for title, query, legend in panels(dashboard):
        names = set(NAME.findall(query))
        assert names, title
        assert names <= known.keys(), title
        grouping = {
            label.strip() for group in GROUPING.findall(query) for label in group.split(",")
        }
        asked = {*LABEL.findall(query), *grouping, *LEGEND.findall(legend)}
        assert asked <= SCRAPED.union(*(known[name] for name in names)), title


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_is_valid(dashboard: Path, tmp_path: Path) -> None:
    """Prometheus's own parser judges, with Grafana's variables filled in."""
    try:
        tool = promtool()
    except UnavailableError as lack:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(lack))
    queries = [query for _, query, _ in panels(dashboard)]
    filled = [re.sub(r"\$__rate_interval", "5m", query) for query in queries]
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(filled)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    done = subprocess.run(
        [tool, "check", "rules", path], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_variable_and_panel_is_of_the_chosen_data_source(dashboard: Path) -> None:
    """A dashboard that names a data source of ours would be empty at everybody else's."""
    whole = json.loads(dashboard.read_text())
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    listed = [*_panels(whole), *whole["templating"]["list"][1:]]
    notes = whole.get("annotations", {"list": []})["list"]
    sources = [
        *notes,
        *listed,
        *(target for panel in _panels(whole) for target in panel["targets"]),
    ]
    known = exposed()
    variables = json.dumps(whole["templating"])

    assert whole["templating"]["list"][0]["type"] == "datasource"
    assert all(item["datasource"] == chosen for item in sources)
    assert set(NAME.findall(variables)) <= known.keys()
    assert len({panel["id"] for panel in whole["panels"]}) == len(whole["panels"])


def test_the_chart_ships_all_as_config_maps() -> None:
    """Whole, under the label by which Grafana's sidecar finds them."""
    values: dict[str, Any] = {"monitoring": {"dashboards": True}}
    texts = Chart.load(CHART).render(values, name="pl", namespace="system")
    shipped = [*yaml.safe_load_all(texts["paceline/templates/dashboards.yaml"])]

    assert [path.stem for path in DASHBOARDS] == ["fleet", "operator", "pod"]
    assert [json.loads(*found["data"].values()) for found in shipped if found] == [
        json.loads(path.read_text()) for path in DASHBOARDS
    ]
    assert all(
        found["metadata"]["labels"]["grafana_dashboard"] == "1" for found in shipped if found
    )


@pytest.mark.parametrize("labels", [{}, {"boards": "ml"}], ids=["usual", "own"])
def test_a_sidecar_of_grafana_may_look_for_another_label(labels: dict[str, str]) -> None:
    """The usual one, and what the values add; without the value there is no dashboard."""
    monitoring: dict[str, Any] = {"dashboards": True}
    if labels:
        monitoring["dashboardLabels"] = {"grafana_dashboard": None, **labels}
    chart = Chart.load(CHART)

    on = chart.render({"monitoring": monitoring}, name="pl", namespace="system")
    off = chart.render({}, name="pl", namespace="system")

    wanted = labels or {"grafana_dashboard": "1"}
    shipped = [*filter(None, yaml.safe_load_all(on["paceline/templates/dashboards.yaml"]))]
    assert len(shipped) == len(DASHBOARDS)
    assert all(wanted.items() <= found["metadata"]["labels"].items() for found in shipped)
    assert not (off.get("paceline/templates/dashboards.yaml") or "").strip()


def test_fleet_and_pod_show_all_that_bounds_a_batch() -> None:
    """Each page has a panel for each of them, and p99 stands beside its target."""
    for name in ("fleet", "pod"):
        text = (CHART / "files" / "dashboards" / f"{name}.json").read_text()
        by_title = {panel["title"]: panel for panel in json.loads(text)["panels"]}
        for metric in ("ttft", "tpot", "itl"):
            asked = " ".join(t["expr"] for t in by_title[f"{metric.upper()} p99"]["targets"])
            assert f"paceline_{metric}_seconds_bucket" in asked
            assert "paceline_sla_target_seconds" in asked
        assert by_title["Batch: sequences a step"]["type"] == "heatmap"
        assert {*NAME.findall(text)} >= SHOWN
