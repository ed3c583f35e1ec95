"""Lists what a part of Paceline runs on, at the versions that are installed here.

`python deploy/shipped.py PART ...` prints NAME==VERSION a line: the distributions that
`paceline[PART]` needs, and those that they need, on this Python and system. Developers' tools are
none of them.
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import distribution, requires
from typing import Final

from packaging.requirements import Requirement

Needed = tuple[str, frozenset[str]]
"""A distribution and the extras of it that are wanted."""
_LOCAL: Final = re.compile(r"\+.*")
"""Of `2.11.0+cpu`: who built it; advisories know the version alone."""


def shipped(parts: Iterable[str]) -> list[str]:
    """Return the requirements, in the order of their names. Raises PackageNotFoundError."""
    left: list[Needed] = [("paceline", frozenset(parts))]
    seen: set[Needed] = set()
    while left:
        needed = left.pop()
        if needed not in seen:
            seen.add(needed)
            left.extend(_needs(*needed))
    names = {name for name, _ in seen} - {"paceline"}
    return sorted(f"{name}=={_LOCAL.sub('', distribution(name).version)}" for name in names)


def _needs(name: str, extras: frozenset[str]) -> Iterable[Needed]:
    for requirement in map(Requirement, requires(name) or ()):
        marker = requirement.marker
        environments = [{"extra": extra} for extra in (*extras, "")]
        if marker is None or any(marker.evaluate(environment) for environment in environments):
            yield _plain(requirement.name), frozenset(requirement.extras)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.stdout.write("\n".join(shipped(sys.argv[1:])) + "\n")
