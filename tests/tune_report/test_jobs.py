from dataclasses import dataclass
from pathlib import Path

import pytest

from tune_report.cache import Code
from tune_report.jobs import Bench
from tune_report.targets import median_interval

CALLS: list[int] = []


@dataclass(frozen=True, slots=True)
class Square:
    number: int
    made_with: str = "one"

    def code(self, code: Code) -> str:  # noqa: ARG002 - the port's shape
        return self.made_with

    def run(self) -> int:
        CALLS.append(self.number)
        return self.number * self.number


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def test_a_repeated_run_computes_nothing(tmp_path: Path) -> None:
    jobs = [Square(2), Square(3)]

    first = Bench(tmp_path, 1).all(jobs, int, "squares")
    second = Bench(tmp_path, 1).all(jobs, int, "squares")

    assert first == second == [4, 9]
    assert CALLS == [2, 3]


def test_other_code_or_another_argument_is_computed_anew(tmp_path: Path) -> None:
    Bench(tmp_path, 1).all([Square(2)], int, "squares")
    Bench(tmp_path, 1).all([Square(2, "two"), Square(4)], int, "squares")

    assert CALLS == [2, 2, 4]


def test_equal_jobs_are_done_once(tmp_path: Path) -> None:
    assert Bench(tmp_path, 1).all([Square(5), Square(5)], int, "squares") == [25, 25]
    assert CALLS == [5]


def test_the_interval_holds_the_median_and_widens_with_the_spread() -> None:
    middle, low, high = median_interval([0.9, 0.95, 1.0, 1.05, 1.1])

    assert (low, middle, high) == (0.9, 1.0, 1.1)
    assert median_interval([1.0, 1.0, 1.0]) == (1.0, 1.0, 1.0)
