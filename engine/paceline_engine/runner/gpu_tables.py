"""The rows' tables of a GPU: they stay on it, and a step sends what changed. See `RowTables`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.sampling_tensors import Parameters
from paceline_engine.core.step_inputs import Int64s, RowWrites, StepInputs
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.runner.staging import Staging
from paceline_engine.runner.static_decodes import StaticDecodes
from paceline_kernels import keep_tokens, lay_out_draws, lay_out_step, write_rows
from paceline_kernels.input_prep import DRAW_COLUMNS

_WRITES_ROOM = 65_536
"""Numbers of writes in one copy: 512 KiB. What is more goes ahead in copies of its own."""


_PADDING = -1
"""In place of a row: nobody's."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A step's numbers on the device, until the next step's are copied there; all int64."""

    rows: Tensor  # [S]
    starts: Tensor  # [S]
    bounds: Tensor  # [S + 1]
    token_ids: Tensor  # [T]
    sampled_rows: Tensor  # [R]: whose row each token is that samples
    sampled_at: Tensor  # [R]: its place in its sequence


class DeviceTables:
    """Blocks, draws and newest tokens of every row, on a device."""

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
        self._num_columns = num_columns
        # Of each row its blocks, and behind them what its owner's tokens are drawn by.
        width = num_columns + DRAW_COLUMNS
        self._table = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self._latest = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Rows, starts, bounds and tokens, and of those that sample rows and places: none are more
        # than the step's tokens.
        self._staging = Staging(6 * num_tokens + 3 + _WRITES_ROOM, device)
        none = torch.empty(0, dtype=torch.int64, device=device)
        self._sampled_rows, self._sampled_at = none, none
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
            self._table,
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

    def stage(self, inputs: StepInputs) -> Staged:
        """Copy a step's numbers to the device, and write what changed in the rows."""
        step = [inputs.rows, inputs.starts, inputs.bounds, inputs.token_ids, *inputs.sampled_at]
        staged = Staged(*self._put(step, inputs.writes))
        self._sampled_rows, self._sampled_at = staged.sampled_rows, staged.sampled_at
        return staged

    def parameters(self, inputs: StepInputs) -> Parameters | None:  # [R]
        """See `RowTables`."""
        parameters = Parameters.empty(len(inputs.sample_rows), self.device)
        self._lay_out_draws(self._sampled_rows, self._sampled_at, parameters)
        return parameters

    # --- a step of decodes alone, in tensors that stay where they are -----------------------------

    def stage_decodes(self, inputs: StepInputs, size: int) -> None:
        """Copy a step's numbers to the places of this size, padded, and write what changed."""
        num_rows = len(inputs.rows)
        step = np.zeros((3, size), dtype=np.int64)
        step[0, num_rows:] = _PADDING
        step[:, :num_rows] = inputs.rows, inputs.starts, inputs.token_ids
        rows, starts, _ = self._put(list(step), inputs.writes)
        self._sampled_rows, self._sampled_at = rows[:num_rows], starts[:num_rows]

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
            self._table,
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

    def lay_out_draws(self, size: int) -> Parameters:  # [size]
        """Make what the step that was staged at this size draws its tokens by; as above."""
        rows, starts = self._staging.places([size] * 2)
        parameters = self.draws(size)
        self._lay_out_draws(rows, starts, parameters)
        return parameters

    def draws(self, num_rows: int) -> Parameters:  # [num_rows]
        """Where that lies, until the next step is made."""
        return self._static.parameters(num_rows)

    def keep_decodes(self, size: int, tokens: Tensor) -> None:  # [size]
        """Leave what was sampled at the rows that were staged at this size."""
        keep_tokens(self._latest, self._staging.places([size])[0], tokens)

    # ----------------------------------------------------------------------------------------------

    def _put(self, step: list[Int64s], writes: RowWrites) -> list[Tensor]:
        """Copy a step's numbers, and write what changed before anybody reads it."""
        *ahead, last = writes.parts(_WRITES_ROOM)
        for part in ahead:
            write_rows(self._table, *self._staging.put(part.arrays))
        if not len(last):
            return self._staging.put(step)
        numbers = self._staging.put([*step, *last.arrays])
        write_rows(self._table, *numbers[len(step) :])
        return numbers[: len(step)]

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:
        """See `RowTables`; of the step laid out last."""
        if inputs.kept_at is not None and len(tokens):
            keep_tokens(self._latest, self._sampled_rows, tokens)

    def _lay_out_draws(self, rows: Tensor, places: Tensor, parameters: Parameters) -> None:
        lay_out_draws(self._table, rows, places, column=self._num_columns, **parameters._asdict())

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
