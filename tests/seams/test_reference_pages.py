"""The tables of docs/metrics.md and docs/processes.md are what the processes declare."""

from reference_pages.metrics import OPERATOR_UNITS
from reference_pages.page import pages
from reference_pages.processes import DEFAULTS


def test_the_tables_are_generated() -> None:
    """`make crds` writes them; a setting without a docstring, or a metric without a unit, fails."""
    for page in pages():
        assert page.refreshed() == page.path.read_text(encoding="utf-8"), page.path


def test_what_the_generators_add_is_of_settings_and_metrics_that_there_are() -> None:
    """A renamed one would leave a line behind that nothing reads."""
    written = "\n".join(table for page in pages() for table in page.tables.values())

    assert [n for n in (*DEFAULTS, *OPERATOR_UNITS) if f"| `{n}` |" not in written] == []
