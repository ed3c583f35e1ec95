"""Code blocks of a Markdown page, and the comments that say something about them."""

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"})
"""What a reader of the documentation reads; README files of folders are for those who change it."""

_COMMENT = re.compile(r"<!-- run: (?P<said>.*?) -->")
_PARSER = MarkdownIt().enable("table")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code."""

    page: Path
    line: int
    """Of its first line of content, from 1."""

    language: str
    """As the fence names it; empty where there is none, or no fence."""

    text: str
    is_fenced: bool = True
    said: str = ""
    """What `<!-- run: ... -->` right before it says."""

    def __str__(self) -> str:
        """Where it is, as an editor takes it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """Return the page's blocks of code in order; those inside of lists too."""
    found = []
    said = ""
    for token in _PARSER.parse(page.read_text() if text is None else text):
        if token.type == "html_block":
            comment = _COMMENT.search(token.content)
            said = comment["said"] if comment else ""
        elif token.type in {"fence", "code_block"} and token.map is not None:
            is_fenced = token.type == "fence"
            first = token.map[0] + (2 if is_fenced else 1)
            found.append(Block(page, first, token.info.strip(), token.content, is_fenced, said))
            said = ""
        elif token.level == 0:
            said = ""
    return found


def inline_code(page: Path) -> list[str]:
    """Return the texts between backticks."""
    inlines = (token for token in _PARSER.parse(page.read_text()) if token.type == "inline")
    parts = (part for token in inlines for part in token.children or [])
    return [part.content for part in parts if part.type == "code_inline"]
