"""Block sizes that the GPU suite tries, and which of them become a row of the table."""

from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

from gpu_suite.candidates import Question, questions
from gpu_suite.machine import Machine
from gpu_suite.record import Part, Record, merged
from gpu_suite.tuning import Timed, counts, figure_of
from paceline_kernels.tuned import SHIPPED, SPACES, Gpu, Row

H200 = Gpu("NVIDIA H200", (9, 0))
VERSIONS = {"torch": "2.15.0", "triton": "3.9.0"}
STANDING = {"num_warps": 4}


def a_question() -> Question:
    def make() -> Any:
        raise NotImplementedError

    return Question("rms_norm", {"columns": 4096}, make)


def rows_in(line: str) -> tuple[Row, ...]:
    """As `rows.py` reads them."""
    found: tuple[Row, ...] = eval(f"({line})", {"Row": Row})
    return found


def test_blocks_that_are_faster_become_a_row_of_this_gpu() -> None:
    """A line for the table, with what it is from."""
    timed = [Timed(STANDING, 20e-6), Timed({"num_warps": 8}, 10e-6), Timed({"num_warps": 2}, 30e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=5, versions=VERSIONS)

    assert figure.value == pytest.approx(10)
    (row,) = rows_in(figure.row)
    assert (row.gpu, row.name, row.kernel, row.shape) == (
        *("sm_90", "NVIDIA H200"),
        *("rms_norm", {"columns": 4096}),
    )
    assert row.blocks == {"num_warps": 8}
    assert row.because == (
        "measured: 10.0 us, was 20.0 us; 3 of 5 candidates; torch 2.15.0, triton 3.9.0"
    )
    assert merged(Record(), [Part("tune", {"GPU": "none"}, 1.0, (figure,))]).rows == (figure.row,)


def test_what_stands_stays_where_the_gain_is_noise() -> None:
    """Two per cent, and the row's author would be measuring the weather."""
    timed = [Timed(STANDING, 100e-6), Timed({"num_warps": 8}, 99e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=2, versions=VERSIONS)

    assert not figure.row
    assert "what stands stays" in figure.note


def test_what_stands_makes_way_where_it_does_not_count() -> None:
    """It spills on this GPU, or does not fit."""
    timed = [Timed({"num_warps": 8}, 99e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=2, versions=VERSIONS)

    assert rows_in(figure.row)[0].blocks == {"num_warps": 8}
    assert "what stands does not count" in figure.note


def test_a_class_without_a_candidate_that_counts_is_a_problem() -> None:
    with pytest.raises(RuntimeError, match="rms_norm, columns 4096: none of 5 candidates"):
        figure_of(a_question(), H200, STANDING, [], tried=5, versions=VERSIONS)


def test_a_candidate_that_does_not_fit_or_is_wrong_does_not_count() -> None:
    """A GPU's shared memory is not known before the launch."""

    def too_large() -> bool:
        raise OutOfResources(300_000, 228_000, "shared memory")

    assert counts(lambda: True)
    assert not counts(lambda: False)
    assert not counts(too_large)


@pytest.mark.parametrize("is_dry", [True, False])
def test_every_question_is_of_a_class_and_every_candidate_has_a_place(is_dry: bool) -> None:
    """The list is bounded: a search must end while the machine is lent."""
    asked = list(questions(Machine(is_dry), has_fp8=True))

    assert {question.kernel for question in asked} == set(SPACES)
    for question in asked:
        assert question.shape in list(SPACES[question.kernel].shapes())
        standing = SHIPPED.row_for(H200, question.kernel, question.shape).blocks
        candidates = list(question.candidates(standing))
        assert candidates[0] == standing
        assert 1 < len(candidates) <= 40
        assert len({str(sorted(blocks.items())) for blocks in candidates}) == len(candidates)
        for blocks in candidates:
            assert all(value in SPACES[question.kernel].blocks[k] for k, value in blocks.items())
