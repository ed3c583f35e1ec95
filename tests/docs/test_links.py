"""Links and paths in the Markdown pages of this repository lead somewhere."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks", "charts", "cli", "crds", "deploy", "docs", "engine",
    "examples", "kernels", "operator", "sidecar", "sim", "tests",
)  # fmt: skip
PAGES = sorted({*ROOT.glob("*.md"), *(page for f in FOLDERS for page in (ROOT / f).rglob("*.md"))})
ROOTED = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
SOURCE = re.compile(r"[\w./-]+/[\w.-]+\.(?:py|c|h|jsonl)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//")
PARSER = MarkdownIt()


class Page(NamedTuple):
    """What a page points to, and what it can be pointed at."""

    links: list[str]
    code: list[str]
    """Texts between backticks."""
    anchors: set[str]


@cache
def read(path: Path) -> Page:
    """Parse a page."""
    links, code = [], []
    slugs: list[str] = []
    tokens = PARSER.parse(path.read_text())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type != "inline":
            continue
        parts = list(flat(token))
        links += [str(part.attrs["href"]) for part in parts if part.type == "link_open"]
        links += [str(part.attrs["src"]) for part in parts if part.type == "image"]
        code += [part.content for part in parts if part.type == "code_inline"]
        if before is not None and before.type == "heading_open":
            text = "".join(part.content for part in parts if part.type in {"text", "code_inline"})
            slugs.append(slug(text))
    seen: Counter[str] = Counter()
    anchors = set()
    for name in slugs:
        anchors.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return Page(links, code, anchors)


def flat(token: Token) -> Iterator[Token]:
    """Yield the parts of a line, and the parts of these."""
    for child in token.children or []:
        yield child
        yield from flat(child)


def slug(heading: str) -> str:
    """Name a heading's anchor as GitHub does."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def sources() -> str:
    """List every file of the repository's folders, one a line."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in files)


def broken_link(page: Path, link: str) -> str:
    """Say what is wrong with a link; empty where it leads somewhere."""
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    if not path.exists():
        return f"{link}: no such file"
    if anchor and path.suffix == ".md" and anchor not in read(path).anchors:
        return f"{link}: no such heading"
    return ""


def is_missing(text: str) -> bool:
    """Tell whether a text between backticks is a path of ours to which there is no file."""
    if ROOTED.fullmatch(text) and not (ROOT / text).exists():
        return True
    return SOURCE.fullmatch(text) is not None and f"/{text}\n" not in sources()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Links to other sites are not followed."""
    ours = [link for link in read(page).links if not ELSEWHERE.match(link)]

    assert [problem for link in ours if (problem := broken_link(page, link))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_between_backticks_exists(page: Path) -> None:
    """A path begins in a folder of the root, or is the end of a source file's path."""
    assert [text for text in read(page).code if is_missing(text)] == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Embeddings and scores", "embeddings-and-scores"),
        ("`GET /runtime/telemetry?since=SEQ`", "get-runtimetelemetrysinceseq"),
        ("The KV cache (`kv_cache/tensors.py`)", "the-kv-cache-kv_cachetensorspy"),
    ],
    ids=["words", "punctuation", "underscores stay"],
)
def test_an_anchor_is_named_as_github_names_it(heading: str, anchor: str) -> None:
    (text,) = (t for t in PARSER.parse(f"## {heading}") if t.type == "inline")

    assert slug("".join(part.content for part in flat(text))) == anchor
