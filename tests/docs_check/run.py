"""A page's console blocks, run in order; what they print is compared with the page, or written."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs_check.blocks import ROOT, Block, blocks
from docs_check.compared import differences, missing
from docs_check.console import CONTINUED, PROMPT, Exchange, exchanges
from docs_check.said import Said, said
from docs_check.terminal import Result, Terminals
from local_cluster.cluster import Cluster

WITHIN_S = 420.0
"""A command of a page that takes longer belongs to no reader's patience."""

_LEFT_OUT = (".git", ".venv*", "out", "build", ".*_cache", "__pycache__", ".hypothesis")
_TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-01 00:{second // 60:02}:{second % 60:02}.0000000,{100 + second},{20 + second % 7}\n"
    for second in range(120)
)
"""`trace.csv` of the pages: a request a second for two minutes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page, in its block."""

    block: Block
    said: Said
    exchange: Exchange

    def __str__(self) -> str:
        """Where it is, and its first line."""
        return f"{self.block}: {self.exchange.command.splitlines()[0]}"


def steps(page: Path, *, text: str | None = None) -> list[Step]:
    """Return the commands of the page's console blocks in order."""
    return [
        Step(block, said(block.said), exchange)
        for block in blocks(page, text)
        if block.language == "console"
        for exchange in exchanges(block.text)
    ]


def home(folder: Path) -> Path:
    """Copy the repository into the folder, with what pages call the reader's own files.

    So no command writes into the tree.
    """
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (folder / ".venv").symlink_to(sys.prefix)
    # Older than what is installed, so that no `make` installs the copy in the place of the tree.
    os.utime(folder / "pyproject.toml", (0, 0))
    (folder / "trace.csv").write_text(_TRACE)
    shutil.copy(ROOT / "examples" / "quickstart.yaml", folder / "service.yaml")
    return folder


def images_of(cluster: Cluster) -> dict[str, str]:
    """Return what `make cluster` says to export."""
    return {
        "KUBECONFIG": str(cluster.kubeconfig),
        "OPERATOR_TAG": cluster.images["operator"].rpartition(":")[2],
        "ENGINE_IMAGE": cluster.images["engine"],
        "SIDECAR_IMAGE": cluster.images["sidecar"],
    }


def environment(folder: Path) -> dict[str, str]:
    """What the commands' shell is told: state of its own, and the width of a terminal."""
    tools = f"{Path(__file__).parent / 'tools'}:{Path(sys.prefix) / 'bin'}"
    return os.environ | {
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
    }


def run(
    todo: list[Step], folder: Path, more: Mapping[str, str] | None = None
) -> Iterator[tuple[Step, Result]]:
    """Run the steps in order, in one shell; yield each with its result as it ends."""
    with Terminals(home(folder), environment(folder) | dict(more or {})) as terminals:
        for step in todo:
            command, until = step.exchange.command, step.said.until
            if step.said.is_apart:
                result = terminals.run_apart(command, until, within_s=WITHIN_S)
            elif until:
                result = terminals.run_until(command, until, within_s=WITHIN_S)
            else:
                result = terminals.run(command, within_s=WITHIN_S)
            yield step, result


def problems(step: Step, result: Result) -> list[str]:
    """Say how the command ended where it failed, and where its output is not the page's."""
    found = [f"ended with {result.status}:\n{result.output}"] if result.status else []
    if step.said.is_quiet:
        return found
    if step.said.shows:
        return found + [
            f"does not show {each!r}" for each in missing(step.said.shows, result.output)
        ]
    return found + differences(step.exchange.output, result.output)


def rewritten(text: str, page: Path, results: list[tuple[Step, Result]]) -> str:
    """Return the page with the outputs that were printed; blocks of which nothing was run stay."""
    lines = text.splitlines(keepends=True)
    # By its commands, not its line: whoever edits the page meanwhile moves the lines.
    printed: dict[str, list[tuple[Step, Result]]] = {}
    for step, result in results:
        printed.setdefault(_commands(step.block), []).append((step, result))
    for block in reversed(blocks(page, text)):
        if block.language == "console" and _commands(block) in printed:
            first = block.line - 1
            written = "".join(_shown(step, result) for step, result in printed[_commands(block)])
            lines[first : first + block.text.count("\n")] = [written]
    return "".join(lines)


def _commands(block: Block) -> str:
    return "\n".join(each.command for each in exchanges(block.text))


def _shown(step: Step, result: Result) -> str:
    command = step.exchange.command.replace("\n", f"\n{CONTINUED}")
    kept = [line.rstrip() for line in result.output.splitlines()]
    output = "" if step.said.is_quiet else "\n".join(kept).strip("\n")
    return f"{PROMPT}{command}\n" + (f"{output}\n" if output else "")
