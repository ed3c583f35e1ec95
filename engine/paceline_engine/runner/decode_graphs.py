"""CUDA graphs of steps of decodes alone, captured at start for a ladder of batch sizes.

A replay costs the host one call instead of some hundred. A graph reads and writes tensors that stay
where they are: the rows' tables, a step's numbers at fixed places, and the results. A batch is
padded to the next size; a padding row stores nothing, attends to nothing, and what is sampled for
it is dropped. Nothing is captured while serving: every size up to the capacity is captured at
start, so no limit leads to a batch without a graph.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from paceline_engine.core.graph_sizes import padded_size
from paceline_engine.core.step_tensors import StepInputs, StepTensors
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_capture import GraphCapture, Replay
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.sampler import SampledTokens
from paceline_kernels import sample_tokens


class DecodeGraphs:
    """The decode graphs of one model, and the tensors that they leave results in."""

    def __init__(
        self,
        sizes: Sequence[int],
        tables: DeviceTables,
        logits_into: Callable[[StepTensors, Tensor], Tensor],
        sampler: DeviceSampler,
        *,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        """`sizes` ascend, up to the capacity.

        `logits_into` runs the model, and leaves its logits in a tensor [size, vocab].
        """
        self._sizes = tuple(sizes)
        self._tables = tables
        self._logits_into = logits_into
        self._sampler = sampler
        self._logits = torch.empty((sizes[-1], vocab_size), dtype=dtype, device=tables.device)
        self._tokens = torch.empty(sizes[-1], dtype=torch.int64, device=tables.device)
        self._replays: dict[int, Replay] = {}

    @torch.inference_mode()
    def capture(self, capture: GraphCapture, progress: Callable[[float], None]) -> None:
        """Capture every size, the largest first: the others fit into the memory it has taken."""
        for done, size in enumerate(reversed(self._sizes)):
            progress(done / len(self._sizes))
            self._tables.stage_padding(size)
            self._replays[size] = capture.capture(partial(self._compute, size))

    @torch.inference_mode()
    def replay(self, inputs: StepInputs) -> None:
        """Compute a step of decodes that all sample."""
        size = padded_size(self._sizes, len(inputs.rows))
        self._tables.stage_decodes(inputs, size)
        self._replays[size]()

    @torch.inference_mode()
    def sampled(self, inputs: StepInputs, masks: PendingMasks | None) -> SampledTokens:
        """Return what the step replayed last samples; the next replay leaves it alone.

        The graph has drawn a token for every row, and left it there. Rows that ask for more draw
        again, by scores that are adjusted as they ask.
        """
        num_rows = len(inputs.rows)
        tokens = self._tokens[:num_rows].clone()
        if inputs.rows_suffice:
            return SampledTokens(tokens)
        sampled = self._sampler.resample(
            self._logits[:num_rows],
            tokens,
            inputs.sampled,
            masks,
            ahead=inputs.ahead,
            parameters=self._tables.sampling_tensors(num_rows),
        )
        self._tables.keep(inputs, sampled.token_ids)
        return sampled

    def _compute(self, size: int) -> None:
        logits = self._logits_into(self._tables.lay_out_decodes(size), self._logits[:size])
        parameters = self._tables.lay_out_sampling(size)
        tokens = sample_tokens(logits, *parameters, out=self._tokens[:size])
        self._tables.keep_decodes(size, tokens)
