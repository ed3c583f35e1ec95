"""The alerts ask for metrics and labels that the processes expose."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def expressions() -> list[str]:
    text = (ROOT / "charts" / "paceline" / "files" / "rules.yaml").read_text()
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_rules_ask_for_metrics_that_the_page_lists() -> None:
    """A renamed metric would leave an alert silent for ever."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"`(paceline_[a-z_]+)`", page))
    asked = {name for text in expressions() for name in re.findall(r"\bpaceline_[a-z_]+", text)}

    assert asked
    assert asked <= listed
