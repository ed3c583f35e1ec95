"""Links of the pages to other sites: each is asked for once, by whoever has the internet.

No test does so: a site that is away for an hour would stop every change. `python -m docs_check
--links` does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from markdown_it import MarkdownIt

from docs_check.blocks import PAGES
from docs_check.found import name_of

TIMEOUT_S = 20.0
"""For connecting, and for each part of an answer."""

_PARSER = MarkdownIt().enable("table")
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; paceline-docs-check)"}
_FOR_PEOPLE_ALONE = {401, 403, 405, 406, 429, 451}
"""How sites refuse programs: the page may be there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one link."""

    url: str
    status: int | None
    """None where there was no answer."""

    problem: str = ""
    """Why there was no answer."""

    @property
    def is_refused(self) -> bool:
        """Whether the site answers no programs, so that a person must look."""
        return self.status in _FOR_PEOPLE_ALONE

    @property
    def is_there(self) -> bool:
        """Whether the page was found, after redirects."""
        return self.status is not None and 200 <= self.status < 300

    def __str__(self) -> str:
        """How it ended, and its address."""
        if self.is_there:
            return f"found    {self.url}"
        if self.is_refused:
            return f"refused  {self.url}: {self.status}, look by hand"
        return f"BROKEN   {self.url}: {self.problem or self.status}"


def links_elsewhere(pages: Iterable[Path] = PAGES) -> dict[str, list[str]]:
    """Return the addresses that pages link to, without their fragments, and who links there."""
    found: dict[str, list[str]] = {}
    for page in pages:
        for link in _links(page.read_text()):
            named = found.setdefault(link.partition("#")[0], [])
            if (name := name_of(page)) not in named:
                named.append(name)
    return found


def _links(text: str) -> Iterator[str]:
    for token in _PARSER.parse(text):
        for part in token.children or []:
            link = str(part.attrs.get("href") or part.attrs.get("src") or "")
            if link.startswith(("http://", "https://")):
                yield link


def ask(urls: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> Iterator[Answer]:
    """Ask for each address once, one after the other; an answer's body is not read."""
    with httpx.Client(headers=_HEADERS, follow_redirects=True, timeout=timeout_s) as client:
        for url in urls:
            try:
                with client.stream("GET", url) as response:
                    yield Answer(url, response.status_code)
            except httpx.HTTPError as problem:
                yield Answer(url, None, f"{type(problem).__name__}: {problem}")
