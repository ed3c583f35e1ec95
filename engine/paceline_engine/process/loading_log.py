"""Shows how far a model has been loaded: a bar on a terminal, else a log line per 10 %."""

import logging
import sys
from typing import TextIO

_log = logging.getLogger(__name__)

_BAR_WIDTH = 30
_STEPS = 10


class LoadingLog:
    """Called with each stage and its fraction, 0 to 1."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._terminal = stream if stream.isatty() else None
        self._seen: tuple[str, int] | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        """Show the fraction, unless the same tenth of the stage has been logged."""
        if self._terminal is not None:
            self._draw(self._terminal, stage, fraction)
            return
        step = stage, int(fraction * _STEPS)
        if step != self._seen:
            self._seen = step
            _log.info("%s %d%%", stage, step[1] * 100 // _STEPS)

    def _draw(self, terminal: TextIO, stage: str, fraction: float) -> None:
        """Draw over the last bar; a stage that is complete keeps its line."""
        full = round(fraction * _BAR_WIDTH)
        bar = "━" * full + " " * (_BAR_WIDTH - full)
        end = "\n" if fraction >= 1 else ""
        terminal.write(f"\r\033[K{stage:16} {bar} {fraction:4.0%}{end}")
        terminal.flush()
