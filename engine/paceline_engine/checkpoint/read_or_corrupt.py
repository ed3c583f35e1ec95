"""Reads an untrusted file by libraries that may raise anything."""

from collections.abc import Callable
from typing import TypeVar

from paceline_engine.errors import CorruptModel, EngineError

Read = TypeVar("Read")


def read_or_corrupt(what_is_wrong: str, read: Callable[[], Read]) -> Read:
    """Return what `read` does; whatever a library raises in it becomes a `CorruptModel`."""
    try:
        return read()
    except EngineError:
        raise
    except Exception as error:  # whatever it is, the files are the cause
        raise CorruptModel(f"{what_is_wrong}: {error!r}.") from error
