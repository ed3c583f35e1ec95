"""Tensors of a step of decodes alone that stay where they are: what a graph may read and write."""

import torch
from torch import Tensor

from paceline_engine.core.sampling_tensors import Parameters
from paceline_engine.core.step_tensors import StepTensors


class StaticDecodes:
    """Taken once, for as many rows as there are; a padded step uses the first of them."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        def zeros(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        self._token_ids = zeros(num_rows)
        self._positions = zeros(num_rows)
        self._slots = zeros(num_rows)
        # As wide as the longest sequence: a captured grid must not depend on who is in the batch.
        self._block_table = zeros(num_rows, num_columns, dtype=torch.int32)
        self._context_lens = zeros(num_rows, dtype=torch.int32)
        self._bounds = torch.arange(num_rows + 1, device=device)
        self._parameters = Parameters.empty(num_rows, device)

    def step(self, size: int) -> StepTensors:
        """The step of so many rows."""
        return StepTensors(
            num_decodes=size,
            token_ids=self._token_ids[:size],
            positions=self._positions[:size],
            slots=self._slots[:size],
            block_table=self._block_table[:size],
            bounds=self._bounds[: size + 1],
            context_lens=self._context_lens[:size],
            chunks=(),
        )

    def parameters(self, size: int) -> Parameters:
        """What the tokens of so many rows are drawn by."""
        return self._parameters.first(size)
