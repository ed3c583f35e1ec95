"""Reading untrusted files by libraries that may raise anything."""

from collections.abc import Iterator
from contextlib import contextmanager

from paceline_engine.errors import CorruptModel, EngineError


@contextmanager
def corrupt_where_unreadable(told: str) -> Iterator[None]:
    """Raise `CorruptModel`, beginning with `told`, for whatever a library raises in the block."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:  # whatever it is, the files are the cause
        raise CorruptModel(f"{told}: {error!r}.") from error
