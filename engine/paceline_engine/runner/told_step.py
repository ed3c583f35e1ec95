"""The message that rank 0 sends the other ranks, as numbers in a fixed order. Pure.

A step: its kind, decodes, S, T, R, W, B and whether every state is kept; then rows [S], starts
[S], bounds [S + 1], token_ids [T], sample_rows [R], and the writes' rows [W], columns [W], bounds
[W + 1] and numbers [B]; see `StepInputs`. Adapters take no part: several ranks have none.
Sizes of mixed graphs: their kind, and the sizes.
"""

from dataclasses import dataclass
from typing import TypeAlias, get_args

import numpy as np

from paceline_engine.core.step_tensors import Int64s, RowWrites, StepInputs
from paceline_engine.runner.graph_use import ExecutionMode

_MODES: tuple[ExecutionMode, ...] = get_args(ExecutionMode)
_SIZES = len(_MODES)
"""The message kind of `ToldSizes`; smaller kinds are those of steps."""
_HEADER = 8


@dataclass(frozen=True, slots=True)
class ToldStep:
    """A step as the ranks above 0 compute it: they sample nothing."""

    mode: ExecutionMode
    inputs: StepInputs


@dataclass(frozen=True, slots=True)
class ToldSizes:
    """Sizes of mixed graphs that are kept, ascending."""

    sizes: tuple[int, ...]


Told: TypeAlias = ToldStep | ToldSizes


def encode(told: Told) -> tuple[Int64s, ...]:
    """Return the arrays whose numbers, one behind the other, are the message."""
    if isinstance(told, ToldSizes):
        return (np.array([_SIZES, *told.sizes], dtype=np.int64),)
    step, writes = told.inputs, told.inputs.writes
    header = (
        _MODES.index(told.mode),
        step.num_decodes,
        len(step.rows),
        len(step.token_ids),
        len(step.sample_rows),
        len(writes),
        len(writes.numbers),
        step.keeps_every_state,
    )
    return (
        np.array(header, dtype=np.int64),
        step.rows,
        step.starts,
        step.bounds,
        step.token_ids,
        step.sample_rows,
        *writes.arrays,
    )


def decode(message: Int64s) -> Told:
    """Return what was encoded; arrays are views of the message."""
    kind = int(message[0])
    if kind == _SIZES:
        return ToldSizes(tuple(message[1:].tolist()))
    decodes, rows, tokens, sampled, runs, numbers, keeps_all = message[1:_HEADER].tolist()
    lengths = (rows, rows, rows + 1, tokens, sampled, runs, runs, runs + 1, numbers)
    ends = _HEADER + np.cumsum(lengths)
    if len(message) != ends[-1]:
        raise ValueError(f"a step of {lengths} must be {ends[-1]} numbers, got {len(message)}")
    parts = np.split(message, [_HEADER, *ends[:-1].tolist()])[1:]
    inputs = StepInputs(
        num_decodes=decodes,
        rows=parts[0],
        starts=parts[1],
        bounds=parts[2],
        token_ids=parts[3],
        sample_rows=parts[4],
        writes=RowWrites(*parts[5:]),
        sampled=(),
        kept_at=None,
        keeps_every_state=bool(keeps_all),
    )
    return ToldStep(_MODES[kind], inputs)
