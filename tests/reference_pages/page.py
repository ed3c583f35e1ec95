"""The pages that are generated: tables between `<!-- begin NAME -->` and its end, and one whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reference_pages import cli, conditions, crd, metrics, openai_fields, processes

_DOCS: Final = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Page:
    """One page, and its text as it should be."""

    path: Path
    text: str


def pages() -> tuple[Page, ...]:
    """Return every page with something generated."""
    return (
        Page(_DOCS / "cli.md", cli.page()),
        _with_tables("conditions.md", conditions.tables()),
        _with_tables("crd.md", crd.tables()),
        _with_tables("metrics.md", metrics.tables()),
        _with_tables("openai-api.md", openai_fields.tables()),
        _with_tables("processes.md", processes.tables()),
    )


def _with_tables(name: str, tables: Mapping[str, str]) -> Page:
    path = _DOCS / name
    text = path.read_text(encoding="utf-8")
    for table, rows in tables.items():
        begin, end = f"<!-- begin {table} -->", f"<!-- end {table} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n\n{rows}\n\n{end}{after}"
    return Page(path, text)
