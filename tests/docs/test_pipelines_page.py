"""The tables of the page on pipelines are those that were measured."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pipelines.md"
RESULTS = ROOT / "benchmarks" / "results" / "cpu" / "pipelines.md"


def test_every_measured_row_is_on_the_page() -> None:
    """Whoever measures again must write the sentences again."""
    rows = [line for line in RESULTS.read_text().splitlines() if line.startswith("|")]

    assert len(rows) > 15
    assert [row for row in rows if row not in PAGE.read_text().splitlines()] == []
