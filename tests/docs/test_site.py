"""The documentation builds as a site, whose pages lead where they do in the repository."""

import logging
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def warnings_and_site(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Build the site once; what MkDocs warned of, and where it is."""
    heard: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mkdocs").addHandler(listener)
    site = tmp_path_factory.mktemp("site")
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site)))
    finally:
        logging.getLogger("mkdocs").removeHandler(listener)
    return heard, site


def test_the_site_builds_without_a_warning(warnings_and_site: tuple[list[str], Path]) -> None:
    """A link, a heading or a page of the navigation that is not there would be one."""
    assert warnings_and_site[0] == []


def test_the_first_page_is_the_readme(warnings_and_site: tuple[list[str], Path]) -> None:
    """Its links lead to pages of the site."""
    text = (warnings_and_site[1] / "index.html").read_text()

    assert 'href="tuner.html"' in text
    assert 'src="images/demo-p99.png"' in text
    assert '<a href="lanes.html"><img' in text  # a picture that is a link


def test_files_beside_the_docs_are_pages_too(warnings_and_site: tuple[list[str], Path]) -> None:
    """A link out of docs/ would lead nowhere."""
    site = warnings_and_site[1]

    assert 'href="repository/examples/lanes.yaml.html"' in (site / "openai-api.html").read_text()
    assert "priority" in (site / "repository/examples/lanes.yaml.html").read_text()


def test_a_page_loads_nothing_from_elsewhere(warnings_and_site: tuple[list[str], Path]) -> None:
    """It reads without a network."""
    text = (warnings_and_site[1] / "index.html").read_text()

    assert 'src="http' not in text
    assert 'rel="stylesheet" href="http' not in text
