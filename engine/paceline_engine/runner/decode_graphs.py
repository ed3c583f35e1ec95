"""CUDA graphs of steps of decodes alone, captured at start for a ladder of batch sizes.

A replay costs the host one call instead of some hundred. A graph reads and writes tensors that stay
where they are: the rows' tables, a step's numbers at fixed places, and the results. A batch is
padded to the next size; a padding row stores nothing, attends to nothing, and what is sampled for
it is dropped. Nothing is captured while serving: every size up to the capacity is captured at
start, so no limit leads to a batch without a graph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

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
        logits_into: Callable[[StepTensors, Tensor], Tensor | None],
        sampler: DeviceSampler,
        *,
        vocab_size: int,
        dtype: torch.dtype,
        has_adapters: bool = False,
        samples: bool = True,
    ) -> None:
        """`sizes` ascend, up to the capacity.

        `logits_into` runs the model, and leaves its logits in a tensor [size, vocab]. With
        adapters, each size is captured once with them and once without. A rank that does not
        sample has no logits: `logits_into` returns None, and `sampled` is never asked.
        """
        self._sizes = tuple(sizes)
        self._tables = tables
        self._logits_into = logits_into
        self._sampler = sampler
        self._kinds = (True, False) if has_adapters else (False,)
        num_rows = sizes[-1] if samples else 0
        self._logits = torch.empty((num_rows, vocab_size), dtype=dtype, device=tables.device)
        self._tokens = torch.empty(sizes[-1], dtype=torch.int64, device=tables.device)
        self._replays: dict[tuple[int, bool], Replay] = {}

    @torch.inference_mode()
    def capture(self, capture: GraphCapture, progress: Callable[[float], None]) -> None:
        """Capture every size, the largest first: the others fit into the memory it has taken."""
        wanted = list(product(reversed(self._sizes), self._kinds))
        for done, (size, has_adapters) in enumerate(wanted):
            progress(done / len(wanted))
            self._tables.stage_padding(size, has_adapters=has_adapters)
            compute = partial(self._compute, size, has_adapters=has_adapters)
            self._replays[size, has_adapters] = capture.capture(compute)

    @torch.inference_mode()
    def replay(self, inputs: StepInputs) -> None:
        """Compute a step of decodes that all sample."""
        size = padded_size(self._sizes, len(inputs.rows))
        self._tables.stage_decodes(inputs, size)
        self._replays[size, inputs.adapter_slots is not None]()

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

    def _compute(self, size: int, *, has_adapters: bool) -> None:
        step = self._tables.lay_out_decodes(size, has_adapters=has_adapters)
        logits = self._logits_into(step, self._logits[:size])
        if logits is None:
            return
        parameters = self._tables.lay_out_sampling(size)
        tokens = sample_tokens(logits, *parameters, out=self._tokens[:size])
        self._tables.keep_decodes(size, tokens)
