"""Which input tokens of a step are those that the step before it samples."""

from dataclasses import dataclass

import numpy as np

from paceline_engine.running.inputs import Int64s
from paceline_engine.scheduling.batch import Batch


@dataclass(frozen=True, slots=True)
class Carry:
    """What a step takes over from the one before on the device, and leaves for the one behind."""

    places: Int64s  # [K]: tokens of the step that are on their way
    from_rows: Int64s  # [K]: the rows of their requests, where the step before left them
    to_rows: Int64s  # [R]: where the tokens that this step samples are left
    ahead: tuple[int, ...]  # [R]: tokens on their way between the last known one and the sampled


def carry_of(batch: Batch) -> Carry:
    """Look up what is on its way. The host must not have settled a step since it was scheduled."""
    places, from_rows, to_rows, ahead = [], [], [], []
    for place, piece in enumerate(batch.slices):
        request = piece.request
        num_coming = piece.start + piece.count - len(request.token_ids)
        if num_coming > 0:
            places.append(place)  # a decode: slices of one token come first
            from_rows.append(request.row)
        if piece.samples:
            to_rows.append(request.row)
            ahead.append(max(num_coming, 0))
    return Carry(_int64s(places), _int64s(from_rows), _int64s(to_rows), tuple(ahead))


def _int64s(values: list[int] | list[int | None]) -> Int64s:
    return np.array(values, dtype=np.int64)
