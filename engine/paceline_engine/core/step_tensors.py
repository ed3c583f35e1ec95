"""One step's tensors on the device of the model, and the port that makes them from its rows."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline_engine.core.sampling_tensors import Parameters
from paceline_engine.core.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class StepTensors:
    """T tokens of S sequences, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64: block * block_size + offset, where the token's k and v go
    block_table: Tensor  # [S, P] int32, padded with block 0
    bounds: Tensor  # [S + 1] int32: the tokens of sequence s are [bounds[s], bounds[s + 1])
    context_lens: Tensor  # [S] int32: keys that its last token sees, itself included
    chunks: tuple[tuple[int, int], ...]  # [S - num_decodes]: tokens and keys of each, on the host


class RowTables(Protocol):
    """What lies beside the model for each row: its blocks, its draws, its newest token."""

    def lay_out(self, inputs: StepInputs) -> StepTensors:
        """Write what changed in the rows, then make the step from them."""
        ...

    def parameters(self, inputs: StepInputs) -> Parameters | None:  # [R]
        """What the step laid out last draws its tokens by; None where no row holds any of it."""
        ...

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:  # [R]
        """Leave what was sampled at its rows, where the next step finds it."""
        ...
