"""docs/tutorial.md is run in order: what stands below each command is what it prints.

`python -m docs_check --write docs/tutorial.md` writes what it printed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs_check.blocks import PAGES
from docs_check.compared import missing
from docs_check.run import images_of, problems, run, steps
from local_cluster.cluster import Cluster

PAGE = next(page for page in PAGES if page.name == "tutorial.md")
STEPS = steps(PAGE)
SYSTEM = "paceline-system"


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
    todo = [step for step in STEPS if not step.said.in_cluster]

    wrong = {
        str(step): problem
        for step, result in run(todo, tmp_path)
        if (problem := problems(step, result))
    }
    assert wrong == {}


@pytest.fixture
def emptied(node_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster from which the tutorial's service and chart are gone, however it ended."""
    yield node_cluster
    node_cluster.try_kubectl("delete", "pisvc", "--all", "--timeout=300s")
    node_cluster.try_kubectl("delete", "namespace", SYSTEM, "--timeout=120s")


@pytest.mark.node
def test_the_clusters_part_prints_what_the_page_says(emptied: Cluster, tmp_path: Path) -> None:
    todo = [step for step in STEPS if step.said.in_cluster]

    wrong = {
        str(step): problem
        for step, result in run(todo, tmp_path, images_of(emptied))
        if (problem := problems(step, result))
    }
    assert wrong == {}
