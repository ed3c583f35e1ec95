"""Every command's own help -> the whole of docs/cli.md."""

from collections.abc import Iterator
from typing import Final

import click

from paceline_cli.__main__ import main

_HEAD: Final = """\
# The command line

`paceline` plans, serves, measures and explains services, on this machine and in a cluster.
Each command says the same with `--help`.
"""
_WIDTH: Final = 100


def page(command: click.Command = main) -> str:
    """Return the whole page, as Markdown."""
    return "\n".join((_HEAD, *_sections(_context(command, "paceline", None))))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    width = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    return command.make_context(name, [], parent, resilient_parsing=True, **width)


def _sections(context: click.Context) -> Iterator[str]:
    text = context.get_help().rstrip()
    level = "#" * (2 + context.command_path.count(" "))
    yield f"{level} {context.command_path}\n\n```text\n{text}\n```\n"
    command = context.command
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from _sections(_context(below, name, context))
