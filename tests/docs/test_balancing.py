"""docs/balancing.md is what the committed results say, and says that it is simulated."""

from balancing.page import PAGE, page
from balancing.results import ALIKE, MIXED, read


def test_the_page_is_written_from_the_committed_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read(ALIKE), read(MIXED))


def test_the_page_says_first_that_it_is_simulated() -> None:
    title, _, first = PAGE.read_text(encoding="utf-8").partition("\n\n")

    assert title.startswith("# ")
    assert first.startswith("**Everything on this page is simulated.**")
