"""The rows' tables of a GPU: they stay on it, and a step sends what changed. See `RowTables`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline_engine.running.inputs import Int64s, RowWrites, StepInputs
from paceline_engine.running.staging import Staging
from paceline_engine.running.static_decodes import StaticDecodes
from paceline_engine.running.step_tensors import StepTensors
from paceline_kernels import keep_tokens, lay_out_step, write_rows

_WRITES_ROOM = 65_536
"""Numbers of writes in one copy: 512 KiB. What is more goes ahead in copies of its own."""


_PADDING = -1
"""In place of a row: nobody's."""

Write = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""As `write_rows`."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A step's numbers on the device, until the next step's are copied there; all int64."""

    rows: Tensor  # [S]
    starts: Tensor  # [S]
    bounds: Tensor  # [S + 1]
    token_ids: Tensor  # [T]
    kept_at: Tensor  # [R]


class DeviceTables:
    """Blocks and newest tokens of every row, on a device."""

    def __init__(
        self,
        num_rows: int,
        num_columns: int,
        block_size: int,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        """`num_tokens`: the most in one step."""
        self._block_size = block_size
        self._blocks = torch.zeros((num_rows, num_columns), dtype=torch.int32, device=device)
        self._latest = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Rows, starts, bounds, rows that keep, and tokens: none are more than the step's tokens.
        self._staging = Staging(5 * num_tokens + 3 + _WRITES_ROOM, device)
        self._kept_at = torch.empty(0, dtype=torch.int64, device=device)
        self._static = StaticDecodes(num_rows, num_columns, device)

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        return self._latest.device

    def lay_out(self, inputs: StepInputs) -> StepTensors:
        """See `RowTables`."""
        staged = self.stage(inputs)
        step = self._empty_step(inputs, staged.bounds)
        is_decode = inputs.num_decodes == len(inputs.rows)
        lay_out_step(
            self._blocks,
            self._latest,
            staged.rows,
            staged.starts,
            staged.bounds,
            staged.token_ids,
            block_size=self._block_size,
            max_count=1 if is_decode else int((inputs.ends - inputs.starts).max()),
            token_ids=step.token_ids,
            positions=step.positions,
            slots=step.slots,
            block_table=step.block_table,
            context_lens=step.context_lens,
        )
        return step

    def stage(self, inputs: StepInputs, write: Write = write_rows) -> Staged:
        """Copy a step's numbers to the device, and write what changed in the rows."""
        kept_at = inputs.rows[:0] if inputs.kept_at is None else inputs.kept_at
        step = [inputs.rows, inputs.starts, inputs.bounds, inputs.token_ids, kept_at]
        staged = Staged(*self._put(step, inputs.writes, write))
        self._kept_at = staged.kept_at
        return staged

    # --- a step of decodes alone, in tensors that stay where they are -----------------------------

    def stage_decodes(self, inputs: StepInputs, size: int) -> None:
        """Copy a step's numbers to the places of this size, padded, and write what changed."""
        num_rows = len(inputs.rows)
        step = np.zeros((3, size), dtype=np.int64)
        step[0, num_rows:] = _PADDING
        step[:, :num_rows] = inputs.rows, inputs.starts, inputs.token_ids
        rows, _, _ = self._put(list(step), inputs.writes, write_rows)
        self._kept_at = rows[:num_rows]

    def stage_padding(self, size: int) -> None:
        """Copy a step of nobody's rows to the places of this size."""
        step = np.zeros((3, size), dtype=np.int64)
        step[0] = _PADDING
        self._staging.put(list(step))

    def lay_out_decodes(self, size: int) -> StepTensors:
        """Make the step that was staged at this size; asks the host for nothing."""
        rows, starts, token_ids = self._staging.places([size] * 3)
        step = self._static.step(size)
        lay_out_step(
            self._blocks,
            self._latest,
            rows,
            starts,
            step.bounds,
            token_ids,
            block_size=self._block_size,
            max_count=1,
            token_ids=step.token_ids,
            positions=step.positions,
            slots=step.slots,
            block_table=step.block_table,
            context_lens=step.context_lens,
        )
        return step

    def keep_decodes(self, size: int, tokens: Tensor) -> None:  # [size]
        """Leave what was sampled at the rows that were staged at this size."""
        keep_tokens(self._latest, self._staging.places([size])[0], tokens)

    # ----------------------------------------------------------------------------------------------

    def _put(self, step: list[Int64s], writes: RowWrites, write: Write) -> list[Tensor]:
        """Copy a step's numbers, and write what changed before anybody reads it."""
        *ahead, last = writes.parts(_WRITES_ROOM)
        for part in ahead:
            write(self._blocks, *self._staging.put(part.arrays))
        if not len(last):
            return self._staging.put(step)
        numbers = self._staging.put([*step, *last.arrays])
        write(self._blocks, *numbers[len(step) :])
        return numbers[: len(step)]

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:
        """See `RowTables`; of the step laid out last."""
        if inputs.kept_at is not None and len(tokens):
            keep_tokens(self._latest, self._kept_at, tokens)

    def _empty_step(self, inputs: StepInputs, bounds: Tensor) -> StepTensors:
        num_tokens, num_sequences = len(inputs.token_ids), len(inputs.rows)
        width = -(-int(inputs.ends.max()) // self._block_size)
        is_decode = inputs.num_decodes == num_sequences

        def empty(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=self._latest.device)

        return StepTensors(
            num_decodes=inputs.num_decodes,
            token_ids=empty(num_tokens),
            positions=empty(num_tokens),
            slots=empty(num_tokens),
            block_table=empty(num_sequences, width, dtype=torch.int32),
            # Of decodes alone nobody reads them.
            bounds=bounds if is_decode else bounds.to(torch.int32),
            context_lens=empty(num_sequences, dtype=torch.int32),
            chunks=inputs.chunks,
        )
