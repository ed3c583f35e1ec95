"""How far a model has been loaded, for a person who runs an engine by hand."""

import io
import logging

import pytest

from paceline_engine.process.loading_log import LoadingLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_for_each_tenth(caplog: pytest.LogCaptureFixture) -> None:
    """Not one for each of a hundred layers."""
    tell = LoadingLog(io.StringIO())

    with caplog.at_level(logging.INFO):
        tell("fetching", 0.0)
        for layer in range(100):
            tell("loading weights", (layer + 1) / 100)

    tenths = [f"loading weights {percent}%" for percent in range(0, 101, 10)]
    assert caplog.messages == ["fetching 0%", *tenths]


def test_a_terminal_gets_a_bar_that_grows_in_its_place() -> None:
    """And keeps it when the stage is complete."""
    terminal = Terminal()
    tell = LoadingLog(terminal)

    tell("loading weights", 0.5)
    tell("loading weights", 1.0)

    half, whole = terminal.getvalue().split("\r")[1:]
    assert half.count("━") * 2 == whole.count("━")
    assert " 50%" in half
    assert whole.endswith("100%\n")
