"""A `console` block: commands after `$ `, each with what it printed."""

from collections.abc import Iterator
from dataclasses import dataclass

PROMPT = "$ "
CONTINUED = "> "


@dataclass(frozen=True, slots=True)
class Exchange:
    """One command, and what the page says that it printed."""

    command: str
    output: str


def exchanges(text: str) -> Iterator[Exchange]:
    """Yield commands in order; lines after `> ` continue the command before them."""
    command: list[str] = []
    output: list[str] = []
    for line in text.splitlines():
        if line.startswith(PROMPT):
            if command:
                yield Exchange("\n".join(command), "".join(output))
            command, output = [line.removeprefix(PROMPT)], []
        elif not command:
            raise ValueError(f"a console block begins with a command after `$ `, not {line!r}")
        elif line.startswith(CONTINUED) and not output:
            command.append(line.removeprefix(CONTINUED))
        else:
            output.append(f"{line}\n")
    if command:
        yield Exchange("\n".join(command), "".join(output))
