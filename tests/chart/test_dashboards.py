"""The chart's dashboards against the schema that Grafana publishes of its own."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()

_FOLDER: Final = Path(__file__).resolve().parents[2] / "charts/paceline/files/dashboards"
DASHBOARDS: Final = sorted(_FOLDER.glob("*.json"))
OF_PROMETHEUS: Final = {
    "expr",
    "interval",
    "refId",
    "titleFormat",
    "textFormat",
    "tagKeys",
    "useValueForTime",
}
"""Fields of an annotation that Grafana hands to the data source, so its schema has none of them."""
WIDTH: Final = 24
"""Columns of a dashboard."""
OF_TIME: Final = {"s", "ms"}


def unknown(dashboard: dict[str, Any]) -> list[str]:
    """Return the paths of all values that a reading by Grafana's schema does not bring back."""
    read = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    return [
        path
        for path in _lost(dashboard, read, "")
        if not (path.startswith(".annotations.") and path.rpartition(".")[2] in OF_PROMETHEUS)
    ]


def _lost(ours: Any, read: Any, path: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(read, dict):
        for key, value in ours.items():
            if key in read:
                yield from _lost(value, read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for index, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif ours != read:
        yield path


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_grafana_knows_every_field(file: Path) -> None:
    """A field that its schema lacks would be dropped without a word."""
    assert unknown(json.loads(file.read_text())) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda panel: panel["fieldConfig"]["overrides"][0]["matcher"].update(option=""),
        lambda panel: panel["fieldConfig"]["defaults"].update(untit="s"),
        lambda panel: panel["targets"][0].update(expression="1"),
        lambda panel: panel.update(sise=1),
    ],
    ids=["override", "style", "query", "panel"],
)
def test_a_misspelt_field_is_found(spoil: Any) -> None:
    """The check reads inside panels, overrides, styles and queries."""
    dashboard = json.loads((_FOLDER / "pod.json").read_text())
    panel = next(each for each in _panels(dashboard) if each["fieldConfig"]["overrides"])
    before = deepcopy(dashboard)

    spoil(panel)

    assert unknown(before) == []
    assert len(unknown(dashboard)) == 1


def _panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def _read(file: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(file.read_text())
    return dashboard


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_stands_in_a_named_row_and_beside_its_neighbours(file: Path) -> None:
    """Whoever is on call finds a panel by its heading; each line of panels fills the width."""
    listed = _read(file)["panels"]
    lines: dict[int, list[dict[str, int]]] = {}
    for panel in listed:
        lines.setdefault(panel["gridPos"]["y"], []).append(panel["gridPos"])
    rows = [panel["title"] for panel in listed if panel["type"] == "row"]

    assert listed[0]["type"] == "row"
    assert len(rows) == len({*rows}) >= 4
    assert all(title for title in rows)
    below = 0
    for top, line in lines.items():
        assert top == below
        assert [box["x"] for box in line] == [*accumulate([0, *(box["w"] for box in line[:-1])])]
        assert sum(box["w"] for box in line) == WIDTH
        (height,) = {box["h"] for box in line}
        below = top + height


@pytest.mark.parametrize("name", ["fleet", "pod"])
def test_the_sla_comes_first(name: str) -> None:
    """An alert is about it, so it needs no scrolling."""
    titles = [panel["title"] for panel in _read(_FOLDER / f"{name}.json")["panels"]]

    assert titles[0] == "SLA"
    assert titles.index("Health") < titles.index("Load") < titles.index("Limits and decisions")
    assert {"TTFT p99", "TPOT p99", "ITL p99", "Misses by cause"} < {
        *titles[: titles.index("Health")]
    }


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_says_what_it_shows_and_in_which_unit(file: Path) -> None:
    """A person who is woken has not written the queries."""
    for panel in _panels(_read(file)):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_one_title_has_one_unit() -> None:
    """Panels of two pages are compared."""
    units: dict[str, set[str]] = {}
    for name in ("fleet", "pod"):
        for panel in _panels(_read(_FOLDER / f"{name}.json")):
            units.setdefault(panel["title"], set()).add(panel["fieldConfig"]["defaults"]["unit"])

    assert {title: found for title, found in units.items() if len(found) > 1} == {}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_no_axis_has_counts_and_seconds(file: Path) -> None:
    """Seconds beside counts get an axis of their own, or nobody knows what a 30 is."""
    for panel in _panels(_read(file)):
        for target in panel["targets"]:
            is_time = "_seconds" in target["expr"] or "_ms" in target["expr"]
            assert is_time == (_axis(panel, target) in OF_TIME), panel["title"]


def _axis(panel: dict[str, Any], target: dict[str, Any]) -> str:
    """Return the unit in which a query is drawn."""
    config = panel["fieldConfig"]
    for override in config["overrides"]:
        if re.match(override["matcher"]["options"].strip("/"), target["legendFormat"]):
            for each in override["properties"]:
                if each["id"] == "unit":
                    return str(each["value"])
    return str(config["defaults"]["unit"])


@pytest.mark.parametrize("name", ["fleet", "pod"])
def test_step_times_stay_few_lines(name: str) -> None:
    """A line for each size and kind of step would be thirty, and nobody reads them."""
    (panel,) = (
        each
        for each in _panels(_read(_FOLDER / f"{name}.json"))
        if each["title"] == "Step time by sequences"
    )

    assert len(panel["targets"]) <= 6
    assert not any(" by (" in target["expr"] for target in panel["targets"])


def test_the_pod_shows_how_full_its_kv_memory_could_be() -> None:
    """What bounds a batch is asked of one pod more often than of all."""
    titles = {panel["title"] for panel in _panels(_read(_FOLDER / "pod.json"))}

    assert {
        "Sequences that fit: paged beside preallocated",
        "Unfilled room of last KV blocks",
    } <= titles


def test_the_page_names_rows_and_panels_that_are_there() -> None:
    """Whoever follows it looks for a title."""
    page = (_FOLDER.parents[3] / "docs" / "dashboards.md").read_text()
    listed = [panel for file in DASHBOARDS for panel in _read(file)["panels"]]
    rows = {panel["title"] for panel in listed if panel["type"] == "row"}
    titles = {panel["title"] for panel in listed}
    (find,) = re.findall(r"^## Find your way$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    named = re.findall(r"(?<!\*)\*([A-Z](?:[^*\\]|\\\*)*)\*", find)

    assert [row for row in rows if not re.search(rf"^\|.*\b{row}\b", page, re.MULTILINE)] == []
    assert len(named) > 10
    assert {name.replace("\\*", "*") for name in named} <= titles
