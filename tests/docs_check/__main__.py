"""`python -m docs_check`: run every command of the pages, or write what a page's commands print.

python -m docs_check                               # make docs-check
python -m docs_check --only 'paceline *'           # commands that the pattern fits
python -m docs_check --go-on                       # but those that an earlier run has passed
python -m docs_check --write docs/tutorial.md      # --part laptop, --part cluster
python -m docs_check --links                       # ask other sites for what the pages link to
"""

# ruff: noqa: T201 - commands print

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from docs_check.blocks import ROOT
from docs_check.elsewhere import ask, links_elsewhere
from docs_check.found import found
from docs_check.how import How, class_of
from docs_check.passed import Passed
from docs_check.run import Step, environment, home, images_of, problems, rewritten, run, steps
from docs_check.terminal import CommandEndlessError, Result, Terminals
from local_cluster import start
from local_cluster.errors import UnavailableError

TUTORIAL = ROOT / "docs" / "tutorial.md"
PASSED = Passed(ROOT / "out" / "docs-check.json")
WITHIN_S = 4 * 3600.0
"""The longest of the long ones measures for hours."""
SERVE = "paceline up -f examples/quickstart.yaml --port 8000"
_SHOWN_LINES = 20


def main() -> int:
    """Run what is asked for; the status says whether every command did what its page says."""
    parser = argparse.ArgumentParser(prog="python -m docs_check", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put in what was printed")
    parser.add_argument("--part", choices=["laptop", "cluster"], help="of the tutorial; else both")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of commands, not the page")
    parser.add_argument("--go-on", action="store_true", help="leave out what has passed before")
    parser.add_argument("--links", action="store_true", help="run nothing; needs the internet")
    asked = parser.parse_args()
    if asked.links:
        return _elsewhere()
    parts = [asked.part] if asked.part else ["laptop", "cluster"]
    if asked.write:
        return max(_page(asked.write.resolve(), part, is_written=True) for part in parts)
    statuses = [_commands(asked.only, goes_on=asked.go_on)]
    if asked.only == "*":
        statuses += [_page(TUTORIAL, part, is_written=False) for part in parts]
    return max(statuses)


def _elsewhere() -> int:
    """Ask for each link to another site once; say of what is not found which pages have it."""
    pages = links_elsewhere()
    status = 0
    for answer in ask(pages):
        print(answer if answer.is_there else f"{answer} ({', '.join(pages[answer.url])})")
        status = max(status, not (answer.is_there or answer.is_refused))
    return status


def _commands(only: str, *, goes_on: bool) -> int:
    """Run each command once, in a copy of the tree; say of the others why not."""
    pages: dict[str, str] = {}
    for each in found():
        plain = each.text.removeprefix(".venv/bin/")
        if fnmatchcase(plain, only):
            pages.setdefault(plain, each.page)
    by_how: dict[How, list[str]] = {how: [] for how in How}
    for text, page in pages.items():
        decided = class_of(text)
        if decided is None:
            print(f"nobody has decided how it is run: {page}: {text}")
            return 1
        by_how[decided.how].append(text)
        if decided.how in {How.NOT, How.TUTORIAL}:
            print(f"     not run  {page}: {text}\n              {decided.why or decided.how.value}")
    if not goes_on:
        PASSED.forget(pages)
    before = PASSED.seconds()
    for text in before.keys() & pages.keys():
        print(f"{before[text]:7.1f} s, 0  {pages[text]}: {text}\n              by an earlier run")
    alone = [text for text in by_how[How.QUICK] + by_how[How.LONG] if text not in before]
    served = [text for text in by_how[How.SERVED] if text not in before]
    status = 0
    if alone:
        with _terminals() as terminals:
            status = max([status, *(_one(terminals, text, pages[text]) for text in alone)])
    if served:
        with _terminals() as terminals:
            terminals.run_apart(SERVE, "ready at", within_s=600)
            status = max([status, *(_one(terminals, text, pages[text]) for text in served)])
    return status


@contextmanager
def _terminals() -> Iterator[Terminals]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Terminals(home(folder), environment(folder)) as terminals:
            yield terminals


def _one(terminals: Terminals, text: str, page: str) -> int:
    decided = class_of(text)
    assert decided is not None, "asked before"
    result = decided.prepared.run(terminals, text, within_s=WITHIN_S)
    _say(f"{page}: {text}", result)
    if result.status:
        print("\n".join(result.output.splitlines()[-_SHOWN_LINES:]))
        return 1
    PASSED.add(text, result.seconds)
    return 0


def _page(page: Path, part: str, *, is_written: bool) -> int:
    """Run one part of a page; compare what is printed, or write it."""
    todo = [step for step in steps(page) if step.said.in_cluster == (part == "cluster")]
    done: list[tuple[Step, Result]] = []
    status = 0
    try:
        for step, result in _ran(todo, needs_cluster=part == "cluster"):
            done.append((step, result))
            _say(str(step), result)
            if wrong := [] if is_written and not result.status else problems(step, result):
                status = 1
                print("\n".join(f"              {each}" for each in wrong))
    except UnavailableError as lack:
        print(f"     not run  {page.relative_to(ROOT)}, the {part}'s part: {lack}")
    except CommandEndlessError as problem:
        print(problem)
        status = 1
    if is_written and done:
        page.write_text(rewritten(page.read_text(), page, done))
    return status


def _ran(todo: list[Step], *, needs_cluster: bool) -> Iterator[tuple[Step, Result]]:
    with tempfile.TemporaryDirectory() as name:
        if not needs_cluster:
            yield from run(todo, Path(name))
            return
        with start.whole() as cluster:
            yield from run(todo, Path(name), images_of(cluster))


def _say(text: str, result: Result) -> None:
    print(f"{result.seconds:7.1f} s, {result.status}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
