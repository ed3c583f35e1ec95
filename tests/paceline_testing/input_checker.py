"""Holds what rows give against the arrays that are made anew, step by step."""

from collections.abc import Sequence

import numpy as np
import torch

from paceline_engine.core.batch import Batch
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import RowTables, SamplingTensors, StepTensors
from paceline_engine.runner.cpu_tables import HostTables
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_testing.sampling_reference import parameters_of
from paceline_testing.step_reference import Choose, StepReference, step_reference
from paceline_wire.limits import Capacity

_SALT = b"salt"


class InputChecker:
    """Beside a runner that sees every batch: keeps rows as a model's runner does."""

    def __init__(
        self, capacity: Capacity, vocab_size: int, choose: Choose, *, tokens_stay: bool = True
    ) -> None:
        num_rows, self._block_size = capacity.max_batch_size, capacity.block_size
        num_columns = -(-capacity.max_model_len // self._block_size)

        def an_input_batch(salt: bytes | None) -> InputBatch:
            return InputBatch(
                num_rows,
                num_columns,
                self._block_size,
                vocab_size,
                salt=salt,
                tokens_stay=tokens_stay,
            )

        self._choose = choose
        most = max(capacity.max_token_budget, num_rows)
        device = torch.device("cpu")
        on_host = HostTables(num_rows, num_columns, self._block_size)
        on_device = DeviceTables(num_rows, num_columns, self._block_size, most, device)
        self._sides: tuple[tuple[InputBatch, RowTables], ...] = (
            (an_input_batch(None), on_host),
            (an_input_batch(_SALT), on_device),
        )

    def check(self, batch: Batch) -> None:
        """Compare every array of a step, and leave what it samples at its rows."""
        wanted = step_reference(batch, self._block_size, self._choose)
        for input_batch, tables in self._sides:
            inputs = input_batch.prepare(batch)
            np.testing.assert_array_equal(inputs.sample_rows, wanted.sample_rows)
            assert tuple(request.id for request in inputs.sampled) == wanted.sampled
            assert inputs.ahead == wanted.ahead
            _require_equal(tables.lay_out(inputs), wanted)
            _require_drawn_by(tables.parameters(inputs), inputs.sampled, wanted)
            tables.keep(inputs, torch.from_numpy(wanted.next_ids))


def _require_drawn_by(
    seen: SamplingTensors | None, requests: Sequence[Request], wanted: StepReference
) -> None:
    if seen is None:  # on a CPU the sampler asks the requests
        return
    ahead = wanted.draws_at - [len(request.token_ids) for request in requests]
    for name, column in parameters_of(requests, ahead.tolist(), _SALT)._asdict().items():
        assert torch.equal(getattr(seen, name), column), name


def _require_equal(step: StepTensors, wanted: StepReference) -> None:
    np.testing.assert_array_equal(step.token_ids.numpy(), wanted.token_ids)
    np.testing.assert_array_equal(step.positions.numpy(), wanted.positions)
    np.testing.assert_array_equal(step.slots.numpy(), wanted.slots)
    np.testing.assert_array_equal(step.block_table.numpy(), wanted.block_table)
    np.testing.assert_array_equal(step.bounds.numpy(), wanted.bounds)
    np.testing.assert_array_equal(step.context_lens.numpy(), wanted.context_lens)
