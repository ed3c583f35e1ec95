"""Shell text -> the commands in it, each as its words."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile

_KEYWORDS = {"do", "then", "else", "done", "fi", "!", "{", "}"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SEPARATORS = set("|&;()")
_EXPANDED = re.compile(r"[^$\"'\\`]*(?:\$\w+[^$\"'\\`]*)+")
"""A word with `$NAME`; the quotes around it are forgotten, so one with others inside stays."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments; redirections and variables before it are left out."""

    program: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        """As a person would type it; variables stay variables."""
        return " ".join(map(_quoted, (self.program, *self.arguments)))


def _quoted(word: str) -> str:
    return f'"{word}"' if _EXPANDED.fullmatch(word) else shlex.quote(word)


def commands(text: str) -> Iterator[Command]:
    """Yield every command, of pipes, lists, loops and substitutions too."""
    for line in whole_lines(text):
        for simple in _simple(_tokens(line)):
            words = [*dropwhile(_is_before_a_program, simple)]
            if words and words[0] != "for":
                yield Command(words[0], tuple(words[1:]))


def _is_before_a_program(word: str) -> bool:
    return word in _KEYWORDS or _ASSIGNMENT.fullmatch(word) is not None


def whole_lines(text: str) -> Iterator[str]:
    """Yield lines, each with those that continue it: after a backslash, a pipe, or in quotes."""
    kept = ""
    for line in text.splitlines():
        kept = f"{kept}\n{line}" if kept else line
        if not kept.rstrip().endswith(("\\", "|")) and _is_closed(kept):
            yield kept
            kept = ""
    if kept:
        raise ValueError(f"a quote, a pipe or a backslash has no end: {kept!r}")


def _is_closed(text: str) -> bool:
    try:
        _tokens(text)
    except ValueError:
        return False
    return True


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _simple(tokens: list[str]) -> Iterator[list[str]]:
    """Split where one command ends and the next begins; drop redirections."""
    words: list[str] = []
    is_target = False
    for token in tokens:
        if set(token) <= _SEPARATORS:
            yield words
            words = []
        elif set(token) <= set("<>&"):
            is_target = True
            if words and words[-1] in {"1", "2"}:  # as in 2>FILE
                words = words[:-1]
        elif is_target:
            is_target = False
        else:
            words.append(token)
    yield words
