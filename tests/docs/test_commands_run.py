"""Every command of the pages is run somewhere, or a reason says why not; the quick ones here."""

from pathlib import Path

import pytest

from docs_check.blocks import PAGES
from docs_check.found import found
from docs_check.how import CLASSES, How, class_of
from docs_check.prepared import AS_IT_IS
from docs_check.run import environment, home, steps
from docs_check.terminal import Terminals

WITHIN_S = 600.0
TUTORIAL = next(page for page in PAGES if page.name == "tutorial.md")


def test_somebody_has_decided_about_every_command() -> None:
    """A new one gets a line in docs_check/how.py."""
    assert [f"{each.page}: {each.text}" for each in found() if class_of(each.text) is None] == []


def test_every_decision_is_about_a_command() -> None:
    """A pattern that fits nothing, or comes after one that fits all of its own, says nothing."""
    used = {class_of(each.text) for each in found()}

    assert [each.pattern for each in CLASSES if each not in used] == []


def test_what_is_not_run_has_a_reason() -> None:
    assert [each.pattern for each in CLASSES if bool(each.why) != (each.how is How.NOT)] == []


def test_what_addresses_the_local_service_is_run() -> None:
    """Whoever reads such a command has the service; what the reader alone has is in its body."""
    of_the_reader = ('"model": "sql"',)
    addressed = [each.text for each in found() if "http://127.0.0.1:8000" in each.text]
    left = [text for text in addressed if (it := class_of(text)) and it.how is How.NOT]

    assert len(addressed) > 4
    assert [text for text in left if not any(each in text for each in of_the_reader)] == []


def test_no_process_of_a_pod_is_waited_for() -> None:
    """The engine, the sidecar and the operator end only when they are told to."""
    processes = "python -m paceline_"
    named = [each.text for each in found() if processes in each.text]

    assert len(named) > 4
    assert [text for text in named if (it := class_of(text)) and it.how is not How.NOT] == []


def test_nothing_is_prepared_for_what_is_not_run() -> None:
    run_by_itself = {How.QUICK, How.LONG, How.SERVED}
    prepared = [each for each in CLASSES if each.prepared is not AS_IT_IS]

    assert [each.pattern for each in prepared if each.how not in run_by_itself] == []


def test_the_tutorial_runs_what_is_left_to_it() -> None:
    """With the same program and the same first word."""
    run = [step.exchange.command.replace(".venv/bin/", "") for step in steps(TUTORIAL)]
    left = {
        " ".join(each.text.removeprefix(".venv/bin/").split()[:2])
        for each in found()
        if (decided := class_of(each.text)) and decided.how is How.TUTORIAL
    }
    left = {first.partition(" http")[0] for first in left}

    assert [first for first in left if not any(first in command for command in run)] == []


def test_only_the_tutorial_has_console_blocks() -> None:
    """What is shown as printed is printed by a test; another page with such blocks needs one."""
    assert [page.name for page in PAGES if steps(page)] == [TUTORIAL.name]


@pytest.mark.slow
def test_the_quick_commands_do_what_they_are_asked(tmp_path: Path) -> None:
    """In a copy of the tree, with a manifest and a trace as a reader's own."""
    decided = {each.text: it for each in found() if (it := class_of(each.text))}
    quick = {text: it.prepared for text, it in decided.items() if it.how is How.QUICK}
    with Terminals(home(tmp_path), environment(tmp_path)) as terminals:
        results = {
            text: prepared.run(terminals, text, within_s=WITHIN_S)
            for text, prepared in quick.items()
        }

    assert len(quick) > 4
    assert {text: each.output for text, each in results.items() if each.status != 0} == {}
