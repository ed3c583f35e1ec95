"""DecisionLog: the newest decisions on one pod, packed: thousands of pods keep two hundred each."""

import zlib
from collections import deque
from dataclasses import fields, replace
from typing import Final

import msgspec

from paceline_tuner.decision import Decision
from paceline_tuner.pod_state import PodState

_KEPT: Final = 200
_PACKED: Final = 10
"""Decisions of one block: what follows one another is alike, and takes a quarter of its size."""
_LEVEL: Final = 9
_MARKS: Final = 50
_NO_STATE: Final = PodState()
# Only the next decision needs them, and it has them.
_LEFT_OUT: Final = frozenset({"state", "acknowledged_state"})
_LOGGED: Final = tuple(field.name for field in fields(Decision) if field.name not in _LEFT_OUT)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Decision]).decode


class DecisionLog:
    """Holds two hundred decisions; only the newest has its states."""

    __slots__ = ("_blocks", "_example", "_marks", "_newest", "_open")

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._blocks: deque[bytes] = deque(maxlen=_KEPT // _PACKED)
        self._open: list[bytes] = []
        self._example = b""
        """The first decision: what all have in common, such as names, need not be in each block."""
        self._newest: Decision | None = None
        self._marks: deque[Decision] = deque(maxlen=_MARKS)

    def append(self, decision: Decision) -> None:
        """Keep a decision."""
        if self._newest is not None:
            self._open.append(_encode({name: getattr(self._newest, name) for name in _LOGGED}))
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
        packed = [decision for block in self._blocks for decision in _decode(self._unpacked(block))]
        opened = _decode(_joined(self._open))
        newest = [] if self._newest is None else [self._newest]
        return [*packed, *opened, *newest]

    def _packed(self, block: bytes) -> bytes:
        packing = zlib.compressobj(_LEVEL, zdict=self._example)
        return packing.compress(block) + packing.flush()

    def _unpacked(self, block: bytes) -> bytes:
        return zlib.decompressobj(zdict=self._example).decompress(block)


def _joined(encoded: list[bytes]) -> bytes:
    """Make one MessagePack array of encoded values."""
    return b"\xdc" + len(encoded).to_bytes(2, "big") + b"".join(encoded)
