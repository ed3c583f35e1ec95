"""A run of all pages' commands that was cut off goes on where it ended."""

from pathlib import Path

from docs_check.passed import Passed


def test_what_has_passed_is_there_for_the_next_run(tmp_path: Path) -> None:
    """With what it took; another run of the same command takes its place."""
    path = tmp_path / "out" / "passed.json"
    assert Passed(path).seconds() == {}

    Passed(path).add("make demo", 41.25)
    Passed(path).add("make help", 0.5)
    Passed(path).add("make help", 0.7)

    assert Passed(path).seconds() == {"make demo": 41.2, "make help": 0.7}


def test_only_commands_that_are_run_again_are_forgotten(tmp_path: Path) -> None:
    """A run of a few leaves what a run of all has done."""
    passed = Passed(tmp_path / "passed.json")
    passed.add("make demo", 41.0)
    passed.add("make help", 0.5)

    passed.forget(["make help", "make bench"])

    assert passed.seconds() == {"make demo": 41.0}
