"""What `<!-- run: ... -->` before a console block says of how its commands are run."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """How a block's commands are run, and how much of their output is compared."""

    in_cluster: bool = False
    """`cluster`: belongs to the part that needs one."""

    is_apart: bool = False
    """`apart`: runs on in a terminal of its own, until the page ends."""

    is_quiet: bool = False
    """`quietly`: the page leaves out what it prints, which is another program's."""

    until: str = ""
    """`until TEXT`: apart, what was printed up to a line with TEXT; else, run again until so."""

    shows: tuple[str, ...] = ()
    """`shows TEXT...`: the output has these in this order; the rest is the machine's."""


def said(text: str) -> Said:
    """Read the words; `shows` takes all that follow it."""
    words = shlex.split(text)
    flags = set()
    until = ""
    shows: tuple[str, ...] = ()
    while words:
        word = words.pop(0)
        if word in {"cluster", "apart", "quietly"}:
            flags.add(word)
        elif word == "until" and words:
            until = words.pop(0)
        elif word == "shows" and words:
            shows, words = tuple(words), []
        else:
            raise ValueError(f"`run: {text}`: {word!r} is none of cluster, apart, quietly, "
                             "until TEXT, shows TEXT...")  # fmt: skip
    if "apart" in flags and not until:
        raise ValueError(f"`run: {text}`: what runs apart needs `until TEXT`")
    return Said("cluster" in flags, "apart" in flags, "quietly" in flags, until, shows)
