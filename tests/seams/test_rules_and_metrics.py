"""The alerts ask for metrics and labels that the processes expose."""

import re
from pathlib import Path
from typing import Any, get_args

import yaml

from paceline_api.status import RolloutPhase
from paceline_sidecar.metrics.ledger import LANES
from paceline_tuner.service_report import Phase
from paceline_tuner.sla_conditions import Kind

ROOT = Path(__file__).parents[2]
WORDS: dict[str, set[str]] = {
    "lane": {*LANES},
    "outcome": {"ok", "refused", "shed", "timeout", "failed", "cancelled"},
    "phase": {*get_args(Phase), *get_args(RolloutPhase)},
    "result": {"met", "missed", "ok", "refused", "conflict", "error"},
    "type": {*get_args(Kind)},
}


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


def test_the_rules_choose_by_labels_and_words_that_there_are() -> None:
    """One that no series has would choose nothing, and the alert with it."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(paceline_[a-z_]+)` \| \w+ \| [^|]* \| ([^|]*) \|", page, re.MULTILINE)
    labels = {name: set(re.findall(r"`(\w+)`", listed)) for name, listed in rows}
    chosen = [
        (metric, *choice)
        for text in expressions()
        for metric, inside in re.findall(r"\b(paceline_[a-z_]+){([^}]*)}", text)
        for choice in re.findall(r'(\w+)=~?"([^"]*)"', inside)
    ]

    assert {label for _, label, _ in chosen} >= {"type", "phase", "lane", "outcome"}
    for metric, label, words in chosen:
        assert label in labels[metric], metric
        assert set(words.split("|")) <= WORDS.get(label, {words}), metric
