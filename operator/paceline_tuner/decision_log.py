"""DecisionLog: the newest decisions on one pod, packed: thousands of pods keep two hundred each."""

import sys
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final

import msgspec

from paceline_tuner.attainment import Counts
from paceline_tuner.decision import Decision
from paceline_tuner.outcome import Prediction
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.tuned_limits import TunedLimits

_KEPT: Final = 200
_PACKED: Final = 10
"""Decisions of one block: what follows one another is alike, and takes a quarter of its size."""
_LEVEL: Final = 9
_MARKS: Final = 50
_NO_STATE: Final = PodState()
# Only the next decision needs them, and it has them.
_LEFT_OUT: Final = frozenset({"state", "acknowledged_state"})
_LOGGED: Final = tuple(field.name for field in fields(Decision) if field.name not in _LEFT_OUT)
_INPUTS: Final = _LOGGED.index("inputs")
# Of these the values alone are kept: names that stand between numbers are half of a block.
_PLAIN: Final[Mapping[str, type]] = {
    "current": TunedLimits,
    "wanted": TunedLimits,
    "chosen": TunedLimits,
    "prediction": Prediction,
    "observed": MeasuredLatency,
    "counts": Counts,
}
_NAMES: Final = {name: tuple(field.name for field in fields(kind)) for name, kind in _PLAIN.items()}
_values_of = attrgetter(*_LOGGED)
_plain_values_of: Final = tuple(
    (_LOGGED.index(name), attrgetter(*names)) for name, names in _NAMES.items()
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode


class DecisionLog:
    """Holds two hundred decisions; only the newest has its states."""

    __slots__ = ("_blocks", "_example", "_inputs", "_marks", "_newest", "_open")

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._blocks: deque[bytes] = deque(maxlen=_KEPT // _PACKED)
        self._open: list[bytes] = []
        self._example = b""
        """The first decision: what all have in common, such as words, need not be in each block."""
        self._inputs: tuple[str, ...] = ()
        """The names of its inputs, which nearly all others have too."""
        self._newest: Decision | None = None
        self._marks: deque[Decision] = deque(maxlen=_MARKS)

    def append(self, decision: Decision) -> None:
        """Keep a decision."""
        if self._newest is not None:
            self._open.append(_encode(self._row(self._newest)))
            self._example = self._example or self._open[0]
        if len(self._open) == _PACKED:
            self._blocks.append(self._packed(_joined(self._open)))
            self._open.clear()
        last, self._newest = self._newest, decision
        if last is None or decision.change or decision.outcome or decision.phase != last.phase:
            self._marks.append(
                replace(decision, state=_NO_STATE, acknowledged_state=_NO_STATE, inputs={})
            )

    @property
    def newest(self) -> Decision | None:
        """The newest one; None before the first."""
        return self._newest

    def milestones(self) -> list[Decision]:
        """List those that changed limits, judged a change or began a phase, then the newest.

        They are without their inputs, and need not be unpacked.
        """
        newest = [] if self._newest is None else [self._newest]
        return [*self._marks, *newest]

    def decisions(self) -> list[Decision]:
        """List them, oldest first."""
        rows = [row for block in self._blocks for row in _decode(self._unpacked(block))]
        rows += _decode(_joined(self._open))
        newest = [] if self._newest is None else [self._newest]
        return [*map(self._restored, rows), *newest]

    def _row(self, decision: Decision) -> list[object]:
        """List its values, and the names of its inputs where they are others than the first's."""
        row: list[Any] = [*_values_of(decision)]
        for place, values_of in _plain_values_of:
            if row[place] is not None:
                row[place] = values_of(row[place])
        inputs, names = row[_INPUTS], tuple(row[_INPUTS])
        self._inputs = self._inputs or tuple(map(sys.intern, names))
        row[_INPUTS] = [*inputs.values()] if names and names == self._inputs else inputs
        return row

    def _restored(self, row: list[Any]) -> Decision:
        told = dict(zip(_LOGGED, row, strict=True))
        for name, names in _NAMES.items():
            if told[name] is not None:
                told[name] = dict(zip(names, told[name], strict=True))
        if isinstance(told["inputs"], list):
            told["inputs"] = dict(zip(self._inputs, told["inputs"], strict=True))
        return msgspec.convert(told, Decision)

    def _packed(self, block: bytes) -> bytes:
        packing = zlib.compressobj(_LEVEL, zdict=self._example)
        return packing.compress(block) + packing.flush()

    def _unpacked(self, block: bytes) -> bytes:
        return zlib.decompressobj(zdict=self._example).decompress(block)


def _joined(encoded: list[bytes]) -> bytes:
    """Make one MessagePack array of encoded values."""
    return b"\xdc" + len(encoded).to_bytes(2, "big") + b"".join(encoded)
