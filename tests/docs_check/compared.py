"""Whether two outputs say the same: every word must; what each run has of its own is named here.

A rule takes one kind of figure, id or layout out of both outputs. What no rule takes is compared
as it is, so a word that changes is a difference.
"""

import difflib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of text that differs from run to run, and what stands for it."""

    name: str
    pattern: re.Pattern[str]
    becomes: str


_HASH = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes makes names of: no vowels, so no words."""

RULES = (
    Rule("the frame of a table", re.compile(r"[─━│┃┏┓┗┛┡┩╇┳┴├┤┼└┘┌┐╭╮╰╯█·]+"), " "),
    Rule("ids of an answer", re.compile(r"\b(chatcmpl|cmpl)-[0-9a-f]{32}\b"), r"\1-<id>"),
    # The first part is a number of 32 bits, digit by digit: often ten, now and then seven.
    Rule("the end of a pod's name", re.compile(rf"-[{_HASH}]{{1,10}}-[{_HASH}]{{5}}\b"), "-<pod>"),
    Rule("an age", re.compile(r"\b(\d+[dhms])+(?= |$)", re.MULTILINE), "<age>"),
    Rule("a number", re.compile(r"\d[\d,]*(\.\d+)?"), "<n>"),
    Rule("how wide a column is", re.compile(r"[ \t]+"), " "),
)
"""In the order in which they are applied."""

_PROGRESS = re.compile(r"^[\w-]+: (start|fetching|reading|loading weights|warming up) \d+%$")
"""How far an engine has loaded: a fast one is not seen in every tenth."""


def normalised(output: str) -> list[str]:
    """Return the lines without what each run has of its own, nor empty ones nor progress."""
    lines = [line for line in output.splitlines() if not _PROGRESS.match(line)]
    for rule in RULES:
        lines = [rule.pattern.sub(rule.becomes, line) for line in lines]
    return [line.strip() for line in lines if line.strip()]


def differences(said: str, printed: str) -> list[str]:
    """Say which lines the page has and the run has not, with `- `, and the other way, with `+ `."""
    compared = difflib.ndiff(normalised(said), normalised(printed))
    return [line for line in compared if line.startswith(("- ", "+ "))]


def missing(shown: tuple[str, ...], output: str) -> list[str]:
    """Return the texts that the output has not, or not in this order."""
    text = "\n".join(normalised(output))
    at = 0
    lacking = []
    for each in shown:
        wanted = " ".join(normalised(each))
        found = text.find(wanted, at)
        if found < 0:
            lacking.append(each)
        else:
            at = found + len(wanted)
    return lacking
