"""Every committed picture has a command that makes it, and a page that shows it."""

import subprocess
from pathlib import Path

from pictures.makers import DRAWN_BY_THEIR_RUN, MAKERS, ROOT, redraw

ENDINGS = (".png", ".svg", ".gif", ".jpg", ".jpeg", ".webp")
DRAWN = [name for _, names in MAKERS for name in names]


def committed() -> list[str]:
    """Return what git holds, or, in a copy without git, what lies in the folders of pictures."""
    told = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    )
    names = told.stdout.splitlines() or [
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "benchmarks")
        for path in (ROOT / folder).rglob("*")
    ]
    return [name for name in names if name.endswith(ENDINGS)]


def test_every_picture_has_one_maker() -> None:
    assert sorted(committed()) == sorted([*DRAWN, *DRAWN_BY_THEIR_RUN])


def test_every_picture_is_shown_or_linked_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    endings = ["/".join(Path(name).parts[1:]) for name in committed()]

    assert [name for name in endings if name not in text] == []


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    """A picture without a date or random names changes only where its results or style do."""
    for root in (tmp_path / "one", tmp_path / "other"):
        assert redraw(root) == DRAWN

    for name in DRAWN:
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("one", "other"))
        assert one == other, name
