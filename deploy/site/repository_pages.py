"""MkDocs hook: the site also has the files of the repository that its pages link to.

Pages link as they do in the repository, so that they can be read there too. A link out of `docs/`
would lead nowhere in a site. So each such file becomes a page below `repository/`: Markdown as it
is, anything else as code; and all links are rewritten to where the pages are now.
"""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
_HOME: Final = "README.md"
# From the end of what is shown on: that may be a picture, which is a link itself.
_LINK: Final = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<rest>(?:#[^)\s]*)?\))")
_FENCE: Final = re.compile(r"^(```.*?^```|    .*?$)", re.MULTILINE | re.DOTALL)
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//|#")
_LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".lua": "lua", ".sh": "sh", ".txt": "text"}
_AS_IT_IS: Final = {".png", ".svg", ".json", ".csv"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and all that pages link to out of `docs/`."""
    docs = Path(config.docs_dir).relative_to(ROOT).as_posix()
    waiting = [_HOME, *(f"{docs}/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        for target in _targets(source):
            if target in seen or target.startswith(f"{docs}/"):
                continue
            seen.add(target)
            files.append(_page(target, config))
            if target.endswith(".md"):
                waiting.append(target)
    files.append(_page(_HOME, config))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page of ours; pages of code have none."""
    source = source_of(page.file.src_uri)
    return rewritten(markdown, source) if source.endswith(".md") else markdown


def rewritten(markdown: str, source: str) -> str:
    """Point each relative link of the file `source`, a path from the root, to its page's place."""
    here = posixpath.dirname(uri_of(source))

    def point(match: re.Match[str]) -> str:
        target = _resolved(source, match["target"])
        if target is None:
            return match[0]
        return match["before"] + posixpath.relpath(uri_of(target), here or ".") + match["rest"]

    parts = _FENCE.split(markdown)
    return "".join(
        part if index % 2 else _LINK.sub(point, part) for index, part in enumerate(parts)
    )


def uri_of(path: str) -> str:
    """Say where a file of the repository lies in the site's sources."""
    if path == _HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    target = ROOT / path
    if target.is_dir():
        readme = target / "README.md"
        return f"repository/{path}/README.md" if readme.exists() else f"repository/{path}.md"
    return f"repository/{path}" + ("" if _is_kept(path) else ".md")


def source_of(uri: str) -> str:
    """Say which file of the repository a page shows."""
    if uri == "index.md":
        return _HOME
    if not uri.startswith("repository/"):
        return f"docs/{uri}"
    path = uri.removeprefix("repository/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _is_kept(path: str) -> bool:
    return Path(path).suffix in {".md", *_AS_IT_IS}


def _targets(source: str) -> list[str]:
    """List what a Markdown file links to in the repository."""
    text = (ROOT / source).read_text(encoding="utf-8")
    parts = _FENCE.split(text)[::2]
    found = (_resolved(source, match["target"]) for part in parts for match in _LINK.finditer(part))
    return [target for target in found if target is not None]


def _resolved(source: str, target: str) -> str | None:
    if _ELSEWHERE.match(target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).exists() else path


def _page(path: str, config: MkDocsConfig) -> File:
    uri, source = uri_of(path), ROOT / path
    level = InclusionLevel.INCLUDED if path == _HOME else InclusionLevel.NOT_IN_NAV
    if _is_kept(path) or path == _HOME:
        file = File.generated(config, uri, abs_src_path=str(source))
    else:
        file = File.generated(config, uri, content=_as_code(path, source))
    file.inclusion = level
    return file


def _as_code(path: str, source: Path) -> str:
    """Show a file as code, or a folder as the list of its files."""
    if source.is_dir():
        names = sorted(
            child.relative_to(source).as_posix() for child in source.rglob("*") if child.is_file()
        )
        parts = [_fenced(source / name, f"{path}/{name}") for name in names]
        return f"# `{path}`\n\n" + "\n".join(parts)
    return f"# `{path}`\n\n{_fenced(source, path)}"


def _fenced(source: Path, title: str) -> str:
    language = _LANGUAGES.get(source.suffix, "text")
    text = source.read_text(encoding="utf-8").rstrip()
    return f'```{language} title="{title}"\n{text}\n```\n'
