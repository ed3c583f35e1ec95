"""How many sequences steps decode, and how long steps take by that number."""

from typing import Literal, get_args

from paceline_sidecar.metrics.histogram import Histogram
from paceline_wire import StepRecord

_EDGES = (
    *(0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0),
    *(192.0, 256.0, 384.0, 512.0, 1024.0),
)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
Kind = Literal["decode", "mixed", "prompt"]


class StepCounts:
    """Steps by the sequences that they decode."""

    def __init__(self) -> None:
        self.sequences = Histogram(_EDGES)
        # All rows are there from the start: a rate over a row that begins later misses its first.
        rows = [(size, kind) for kind in get_args(Kind) for size in _sizes(kind)]
        self.steps = dict.fromkeys(rows, 0)
        self.seconds = dict.fromkeys(rows, 0.0)

    def add(self, step: StepRecord) -> None:
        """Count one step."""
        self.sequences.observe(step.decode)
        row = _row(step)
        self.steps[row] += 1
        self.seconds[row] += step.wall_ms / 1e3


def _sizes(kind: Kind) -> tuple[str, ...]:
    return ("0",) if kind == "prompt" else (*map(str, _SIZES), "inf")


def _row(step: StepRecord) -> tuple[str, Kind]:
    """Draft tokens to verify count as prompt tokens, as they do for the time of a step."""
    if not step.decode:
        return "0", "prompt"
    size = next((str(size) for size in _SIZES if step.decode <= size), "inf")
    return size, "mixed" if step.prefill else "decode"
