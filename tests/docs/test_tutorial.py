"""The laptop's part of docs/tutorial.md is run: what stands below each command is what it prints.

`make docs-check` runs the cluster's part too. What is printed is written by
`python -m docs_check --write docs/tutorial.md`.
"""

from pathlib import Path

import pytest

from docs_check.blocks import PAGES
from docs_check.compared import missing
from docs_check.run import problems, run, steps

PAGE = next(page for page in PAGES if page.name == "tutorial.md")
STEPS = [step for step in steps(PAGE) if not step.said.in_cluster]


def test_what_the_page_shows_is_what_it_is_compared_by() -> None:
    """The outputs that were written have the texts that the run looks for."""
    loose = [step for step in STEPS if step.said.shows]

    assert [
        f"{step}: {text}"
        for step in loose
        for text in missing(step.said.shows, step.exchange.output)
    ] == []


@pytest.mark.model
@pytest.mark.slow
def test_the_laptops_part_prints_what_the_page_says(tmp_path: Path) -> None:
    wrong = {
        str(step): problem
        for step, result in run(STEPS, tmp_path)
        if (problem := problems(step, result))
    }
    assert wrong == {}
