"""The state file leads other commands to the running service, and only to one that runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline_cli import local_state as state
from paceline_cli.local_state import LocalState, NoServiceError
from paceline_testing.reports import a_report, an_explained
from paceline_tuner.service_spec import SLA

STATE = LocalState(
    name="quickstart",
    url="http://127.0.0.1:8000",
    model="quickstart",
    manifest="/somewhere/service.yaml",
    pid=os.getpid(),
    started_at=1.0,
    sla=SLA(itl_p99_ms=400.0),
    report=a_report(),
    decisions=(an_explained(),),
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Report and decisions come back typed."""
    state.write(tmp_path, STATE)

    assert state.find(tmp_path, None) == STATE
    assert state.find(tmp_path, "quickstart") == STATE


def test_a_state_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Its decisions did not say which limits their reasons explain."""
    state.write(tmp_path, STATE)
    (path,) = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    for decision in written["decisions"]:
        del decision["reason_subject"]
    path.write_text(json.dumps(written))

    (decision,) = state.find(tmp_path, None).decisions

    assert decision == an_explained(reason_subject="")


def test_a_service_whose_process_is_gone_is_not_found(tmp_path: Path) -> None:
    """A crash leaves the file behind; nobody answers there."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    state.write(tmp_path, replace(STATE, pid=int(gone.stdout)))

    with pytest.raises(NoServiceError, match="paceline up -f FILE"):
        state.find(tmp_path, None)


def test_among_several_the_name_decides(tmp_path: Path) -> None:
    """And without one, the names are told."""
    for name in ("one", "two"):
        state.write(tmp_path, replace(STATE, name=name))

    assert state.find(tmp_path, "two").name == "two"
    with pytest.raises(NoServiceError, match="say which service; running: one, two"):
        state.find(tmp_path, None)
    with pytest.raises(NoServiceError, match="no service three runs here; running: one, two"):
        state.find(tmp_path, "three")


def test_a_broken_file_hides_no_other_service(tmp_path: Path) -> None:
    """It may be half of another version's."""
    state.write(tmp_path, STATE)
    (tmp_path / "broken.json").write_text("{")

    assert state.find(tmp_path, None) == STATE


def test_a_removed_state_is_gone(tmp_path: Path) -> None:
    """The service has ended."""
    state.write(tmp_path, STATE)
    state.remove(tmp_path, "quickstart")

    assert not state.running(tmp_path)
