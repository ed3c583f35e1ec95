"""The pages with tables of ours, each between two markers: `<!-- begin NAME -->` and its end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reference_pages import metrics, processes

_DOCS: Final = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Page:
    """One page, and its tables by the name in their markers."""

    path: Path
    tables: dict[str, str]

    def refreshed(self) -> str:
        """Return the page with its tables as they should be."""
        page = self.path.read_text(encoding="utf-8")
        for name, table in self.tables.items():
            begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
            before, _, rest = page.partition(begin)
            _, _, after = rest.partition(end)
            page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
        return page


def pages() -> tuple[Page, ...]:
    """Return every page with tables of ours."""
    return (
        Page(_DOCS / "metrics.md", metrics.tables()),
        Page(_DOCS / "processes.md", processes.tables()),
    )
