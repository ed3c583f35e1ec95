"""The command helps at once, and tells mistakes in a sentence, never in a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline_cli import local_state as state
from paceline_cli.__main__ import main
from paceline_cli.local_state import LocalState
from paceline_testing.reports import a_report, an_explained
from paceline_tuner.service_spec import SLA


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No service of this machine's user is seen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "paceline"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_up_names_the_field_of_a_bad_manifest(tmp_path: Path) -> None:
    """Before anything is started."""
    path = tmp_path / "service.yaml"
    path.write_text(
        "{apiVersion: serving.paceline.dev/v1alpha1, kind: InferenceService,"
        " metadata: {name: a}, spec: {model: {uri: 'builtin://m'}, sla: {itl: {p99: fast}}}}"
    )

    result = run("up", "-f", str(path))

    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {path}: ")
    assert "spec.sla.itl.p99" in result.output


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_missing_file_is_named(tmp_path: Path, command: str) -> None:
    """The most common mistake of all."""
    out = ("--out", str(tmp_path / "out")) if command == "demo" else ()

    result = run(command, "-f", str(tmp_path / "nowhere.yaml"), *out)

    assert result.exit_code == 1
    assert result.output == f"Error: {tmp_path}/nowhere.yaml: no such file\n"


@pytest.mark.parametrize("command", ["chat", "explain"])
def test_without_a_running_service_the_way_to_start_one_is_told(command: str) -> None:
    """A stranger types these first."""
    result = run(command)

    assert result.exit_code == 1
    assert "start one with: paceline up -f FILE" in result.output


def test_explain_reads_the_running_service(state_folder: Path) -> None:
    """From its state file; no process is disturbed."""
    state.write(
        state_folder,
        LocalState(
            name="quickstart",
            url="http://127.0.0.1:8000",
            model="quickstart",
            manifest="service.yaml",
            pid=os.getpid(),
            started_at=0.0,
            sla=SLA(itl_p99_ms=400.0),
            report=a_report(),
            decisions=(an_explained(),),
        ),
    )

    result = run("explain", "quickstart", "pod/quickstart-0")

    assert result.exit_code == 0
    assert "the ITL target binds" in result.output


@pytest.mark.parametrize(
    "arguments",
    [("one", "two"), ("pod/a", "pod/b"), ("-n", "team"), ("--last", "0")],
    ids=["two services", "two pods", "no name", "no decision"],
)
def test_explain_refuses_what_it_cannot_mean(arguments: tuple[str, ...]) -> None:
    """With the usage, and click's own status."""
    assert run("explain", *arguments).exit_code == 2


def test_help_needs_nothing_that_only_a_command_runs() -> None:
    """It starts at once, and also where the parts that serve are not installed."""
    code = (
        "import json, sys; from click.testing import CliRunner;"
        "from paceline_cli.__main__ import main;"
        "asked = [[], *([name] for name in main.commands), ['bench', 'sweep']];"
        "codes = [CliRunner().invoke(main, [*names, '--help']).exit_code for names in asked];"
        "print(json.dumps([codes, list(sys.modules)]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )

    codes, modules = json.loads(done.stdout)
    heavy = {"torch", "numpy", "numba", "matplotlib", "httpx", "pydantic", "rich", "yaml"}
    assert len(codes) > 7
    assert set(codes) == {0}
    assert heavy.isdisjoint(modules)
