"""An interrupted measurement goes on where it was, and never mixes two of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline_cli.__main__ import main
from paceline_cli.bench.comparison import ArmResult
from paceline_cli.bench.kept_trials import kept_trials, measurement
from paceline_cli.bench.measures import measure
from paceline_cli.bench.traffic_choice import TrafficChoice
from paceline_cli.errors import BadInputError
from paceline_cli.traffic.record import ClientRecord
from paceline_tuner.service_spec import SLA

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart.yaml"
ASKED = {"command": "compare", "requests": "400"}


def a_result() -> ArmResult:
    """One without an answer: its latencies are infinite."""
    lost = ClientRecord(0.5, 0.5, (), 60.0, 20, 0, "timeout")
    return ArmResult("static", 0.5, measure([lost], 0.0, 1.0, SLA(ttft_p99_ms=500.0)), 3, 300)


def test_what_was_kept_is_read_again_as_it_was(tmp_path: Path) -> None:
    """Infinite latencies too."""
    kept_trials(tmp_path, ASKED, resume=False).keep("static, load 0.5", a_result())

    resumed = kept_trials(tmp_path, ASKED, resume=True)

    assert resumed.has("static, load 0.5")
    assert not resumed.has("static, load 1")
    assert resumed.read("static, load 0.5", ArmResult) == a_result()


def test_without_resume_it_begins_anew(tmp_path: Path) -> None:
    """A person who repeats a command wants new figures."""
    kept_trials(tmp_path, ASKED, resume=False).keep("static", a_result())

    assert not kept_trials(tmp_path, ASKED, resume=False).has("static")


def test_resuming_where_nothing_is_begins(tmp_path: Path) -> None:
    """So that one command can be repeated until it has ended."""
    assert not kept_trials(tmp_path / "new", ASKED, resume=True).has("static")


def test_trials_of_another_measurement_are_refused_and_stay(tmp_path: Path) -> None:
    """Their figures do not belong beside each other; the message says what differs."""
    kept_trials(tmp_path, ASKED, resume=False).keep("static", a_result())

    with pytest.raises(BadInputError, match=r"another requests: .*--resume"):
        kept_trials(tmp_path, ASKED | {"requests": "40"}, resume=True)

    assert kept_trials(tmp_path, ASKED, resume=True).has("static")


def test_a_measurement_is_told_apart_by_its_manifest_and_its_traffic(tmp_path: Path) -> None:
    """All else is how it is shown."""
    traffic = TrafficChoice(rate_rps=2.0)
    other = tmp_path / "other.yaml"
    other.write_text(QUICKSTART.read_text() + "# edited\n")

    base = measurement("sweep", QUICKSTART, traffic)

    assert base == measurement("sweep", QUICKSTART, replace(traffic))
    assert base != measurement("sweep", QUICKSTART, replace(traffic, seed=2))
    assert base != measurement("sweep", other, traffic)
    assert base != measurement("compare", QUICKSTART, traffic)


@pytest.mark.parametrize("command", ["sweep", "compare"])
def test_a_command_refuses_to_resume_another_measurement(tmp_path: Path, command: str) -> None:
    """Before anything starts."""
    kept_trials(tmp_path / "trials", ASKED, resume=False)

    result = CliRunner().invoke(
        main, ["bench", command, "-f", str(QUICKSTART), "--out", str(tmp_path), "--resume"]
    )

    assert result.exit_code == 2  # what cannot be judged
    assert "has trials of another measurement" in result.output
