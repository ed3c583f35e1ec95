"""The commands of the pages: of their blocks of shell, and whole ones between backticks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs_check.blocks import PAGES, ROOT, Block, blocks, inline_code
from docs_check.console import exchanges
from docs_check.parses import KNOWN
from docs_check.shell import commands, whole_lines

SHELL = {"sh", "bash", "console"}
_WHOLE = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:make|python3?|pipx) \S")
"""A sentence names `kubectl describe` or `paceline plan` with most left out; these are whole."""


@dataclass(frozen=True, slots=True)
class Found:
    """One command of a page."""

    page: str
    text: str


def found() -> Iterator[Found]:
    """Yield the commands of every page, but for those that are run with their page."""
    for page in PAGES:
        for block in blocks(page):
            if block.language != "console":
                for command in commands(shell_text(block)):
                    yield Found(name_of(page), str(command))
        for text in inline_code(page):
            if _WHOLE.match(text):
                yield Found(name_of(page), text)


def name_of(path: Path) -> str:
    """Return the path as a person at the root of the repository writes it."""
    return path.relative_to(ROOT).as_posix()


def shell_text(block: Block) -> str:
    """Return the commands of a block; nothing where it is no shell's."""
    if block.language == "console":
        return "\n".join(each.command for each in exchanges(block.text))
    if block.language in SHELL:
        return block.text
    return leading_commands(block.text) if not block.language else ""


def leading_commands(text: str) -> str:
    """Return the lines of a block without a language up to the first that is no known command."""
    lines = []
    try:
        for line in whole_lines(text):
            first = next(commands(line), None)
            if first is not None and first.program.removeprefix(".venv/bin/") not in KNOWN:
                break
            lines.append(line)
    except ValueError:
        pass  # what follows has the quotes of a sentence
    return "\n".join(lines)
