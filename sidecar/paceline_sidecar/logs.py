"""What this process writes to its log: what happened and where, never what a client said.

The text of an exception may quote anything, a prompt or a key among them. A log shows an
exception's types and the lines of code that it passed.
"""

import asyncio
import logging
import traceback
from types import TracebackType
from typing import Any

_log = logging.getLogger(__name__)

_MAX_FRAMES = 50
"""The innermost ones of an exception; endless recursion has a thousand."""
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class QuietFormatter(logging.Formatter):
    """Writes exceptions without their texts."""

    def __init__(self) -> None:
        super().__init__(_LINE)

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; what another formatter has made of its exception is not taken over."""
        made, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = made

    def formatException(self, ei: Raised) -> str:  # noqa: N802 - logging's own name
        """Write the frames and the type of an exception, and of those that led to it."""
        return "" if ei[1] is None else "\n".join(_lines(ei[1]))


def write_to_stderr() -> None:
    """Log from INFO on, as containers do."""
    handler = logging.StreamHandler()
    handler.setFormatter(QuietFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def report_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that nobody awaits; asyncio's own handler would quote its text."""
    _log.error("%s", context.get("message", "a fault"), exc_info=context.get("exception"))


def _lines(error: BaseException, seen: frozenset[int] = frozenset()) -> list[str]:
    seen |= {id(error)}
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    found = []
    if before is not None and id(before) not in seen:
        found = [*_lines(before, seen), "which led to:"]
    for frame in traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES):
        found.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
    found.append(type(error).__qualname__)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            found.extend(f"  {line}" for line in _lines(each, seen))
    return found
