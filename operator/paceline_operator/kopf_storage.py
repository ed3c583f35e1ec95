"""Storages for kopf that keep nothing: none of our handlers asks what changed or what was done.

By default kopf copies every object of every event several times to find a difference that only
its handlers of changes would read; that was a third of the operator's processor time.
"""

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """Finds every object the same as before."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing of the object."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return nothing: nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers nothing of handlers."""

    def fetch(self, **_: Any) -> kopf.ProgressRecord | None:
        """Return nothing: nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Have nothing to remove."""

    def touch(self, **_: Any) -> None:
        """Write nothing on the object."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return it as it is: nothing of ours is in it."""
        return essence
