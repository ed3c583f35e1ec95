"""The chart's dashboards against the schema that Grafana publishes of its own."""

import json
from collections.abc import Iterator
from copy import deepcopy
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
    panel = next(each for each in _panels(dashboard) if each["type"] == "timeseries")
    before = deepcopy(dashboard)

    spoil(panel)

    assert unknown(before) == []
    assert len(unknown(dashboard)) == 1


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])
