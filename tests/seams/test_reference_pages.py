"""The tables of the reference pages, and the command line's page, are what the code declares."""

import pytest

from reference_pages import metrics, processes
from reference_pages.metrics import OPERATOR_UNITS
from reference_pages.page import Page, pages
from reference_pages.processes import DEFAULTS


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.name)
def test_the_page_is_generated(page: Page) -> None:
    """`make crds` writes it; a setting without a docstring, or a metric without a unit, fails."""
    assert page.text == page.path.read_text(encoding="utf-8")


def test_what_the_generators_add_is_of_settings_and_metrics_that_there_are() -> None:
    """A renamed one would leave a line behind that nothing reads."""
    written = "\n".join([*metrics.tables().values(), *processes.tables().values()])

    assert [n for n in (*DEFAULTS, *OPERATOR_UNITS) if f"| `{n}` |" not in written] == []
