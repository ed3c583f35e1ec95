"""docs/tracing.md names the spans and attributes that are sent, and no others."""

from pathlib import Path

from paceline_sidecar.tracing import names

PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"


def test_the_page_has_every_span() -> None:
    """Its table is what names.py says."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in names.SPANS.items()]

    assert "\n".join(["|---|---|", *rows, ""]) in PAGE.read_text()


def test_the_page_has_every_attribute() -> None:
    """With the spans that carry it."""
    rows = [
        f"| `{each.name}` | {', '.join(f'`{span}`' for span in each.spans)} | {each.help} |"
        for each in names.ATTRIBUTES
    ]

    assert "\n".join(["| Attribute | Spans | Is |", "|---|---|---|", *rows, ""]) in PAGE.read_text()
