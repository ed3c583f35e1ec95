"""docs/conditions.md lists each reason that the operator gives, and no other."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

from paceline_api.pod.exit_reasons import REASONS
from paceline_operator import (
    events,
    extras,
    missing_secrets,
    pod_conditions,
    service_conditions,
)
from paceline_tuner import sla_conditions
from paceline_tuner.condition import Obstacle
from paceline_tuner.service_spec import Mode
from reference_pages.conditions import CONDITIONS, event_of

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"
SOURCES = (service_conditions, pod_conditions, missing_secrets, sla_conditions, extras)
LISTED = {(kind, r.status, r.name) for kind, about in CONDITIONS.items() for r in about.reasons}


def strings(module: ModuleType) -> set[str]:
    """Every literal of a module's source."""
    found = (node for node in ast.walk(ast.parse(inspect.getsource(module))))
    return {n.value for n in found if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def concluded(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Every Condition that the source concludes with type, status and reason written out."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in {"Condition", "_condition"}:
            continue
        values = [_text(module, each) for each in node.args[:3]]
        if len(values) == 3 and all(values):
            yield (values[0], values[1], values[2])


def _text(module: ModuleType, node: ast.expr) -> str:
    """A literal, or a name of the module for one; empty for all else."""
    if isinstance(node, ast.Name):
        return str(getattr(module, node.id, ""))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def test_every_condition_that_is_concluded_is_listed() -> None:
    """A new reason needs a row: what it means, and what to do."""
    found = {each for module in SOURCES for each in concluded(module)}

    assert len(found) > 30
    assert found <= LISTED


def test_reasons_that_are_given_by_name_are_listed() -> None:
    """What the engine says, what the tuner finds in the way, and modes."""
    assert {("ModelAvailable", "False", reason) for reason in REASONS} <= LISTED
    obstacles = {("SLAAchievable", "False", each) for each in get_args(Obstacle) if each}
    assert obstacles <= LISTED
    modes = {("TuningActive", "False", each) for each in get_args(Mode) if each != "Auto"}
    assert modes <= LISTED


def test_no_reason_is_listed_that_nobody_gives() -> None:
    """A row for nothing would send people on a wrong path."""
    said = {each for module in SOURCES for each in strings(module)}
    known = said | REASONS | {*get_args(Obstacle), *get_args(Mode)}

    assert {name for _, _, name in LISTED} <= known


def test_every_event_is_listed() -> None:
    """Those that are made of a verdict begin with what was judged."""
    reasons = [
        str(keyword.value.value)
        for node in ast.walk(ast.parse(inspect.getsource(events)))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
    ]

    assert reasons
    assert [name for name in reasons if f"| `{name}` |" not in PAGE.read_text()] == []


def test_the_page_says_which_transitions_are_events() -> None:
    """As they are told: trouble warns, what was asked for does not."""
    by_name = {
        (kind, reason.name): event_of(kind, reason)
        for kind, about in CONDITIONS.items()
        for reason in about.reasons
    }

    assert by_name["SLAMet", "Violating"] == "Warning"
    assert by_name["SLAMet", "Meeting"] == "Normal"
    assert by_name["TuningActive", "Paused"] == "Normal"
    assert by_name["Stalled", "RolledBack"] == "Warning"
    assert by_name["Reconciling", "Settled"] == ""
