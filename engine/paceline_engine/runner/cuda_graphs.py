"""Steps of decodes alone, recorded at start for a ladder of sizes and replayed while serving.

A replay costs the host one call instead of some hundred. What is recorded reads and writes tensors
that stay where they are: the rows' tables, a step's numbers at fixed places, and the results. A
batch is padded to the next size; a row of padding stores nothing, attends to nothing, and what is
sampled for it is dropped. Nothing is recorded while serving: every size up to the capacity is, at
start, so no limit leads to a batch without a graph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from paceline_engine.core.graph_sizes import padded_size
from paceline_engine.core.step_inputs import StepInputs
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.sampling.chosen import Chosen
from paceline_engine.sampling.masks import PendingMasks
from paceline_engine.sampling.on_device import DeviceSampler
from paceline_kernels import sample_tokens

Replay = Callable[[], None]


class GraphCapture(Protocol):
    """Records what a function does on the device."""

    def record(self, compute: Callable[[], None]) -> Replay:
        """Run it, and record it; what replays that on the tensors as they are by then.

        Recordings may share memory: what one leaves outside of tensors that were there before is
        gone with the next replay of another.
        """
        ...


class DecodeGraphs:
    """The recorded steps of one model, and the tensors that they leave results in."""

    def __init__(
        self,
        sizes: Sequence[int],
        tables: DeviceTables,
        logits_of: Callable[[StepTensors], Tensor],
        sampler: DeviceSampler,
        recorder: GraphCapture,
        *,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        """`sizes` rise, up to the capacity; `logits_of` [size, vocab] runs the model on a step."""
        self._sizes = tuple(sizes)
        self._tables = tables
        self._logits_of = logits_of
        self._sampler = sampler
        self._recorder = recorder
        self._logits = torch.empty((sizes[-1], vocab_size), dtype=dtype, device=tables.device)
        self._tokens = torch.empty(sizes[-1], dtype=torch.int64, device=tables.device)
        self._replays: dict[int, Replay] = {}

    @torch.inference_mode()
    def record(self, progress: Callable[[float], None]) -> None:
        """Record every size, the largest first: the others fit into the memory it has taken."""
        for done, size in enumerate(reversed(self._sizes)):
            progress(done / len(self._sizes))
            self._tables.stage_padding(size)
            self._replays[size] = self._recorder.record(partial(self._compute, size))

    @torch.inference_mode()
    def replay(self, inputs: StepInputs) -> None:
        """Compute a step of decodes that all sample."""
        size = padded_size(self._sizes, len(inputs.rows))
        self._tables.stage_decodes(inputs, size)
        self._replays[size]()

    @torch.inference_mode()
    def chosen(self, inputs: StepInputs, masks: PendingMasks | None) -> Chosen:
        """What the step replayed last samples; it stays, also when the next is replayed.

        Every row has drawn its token, and left it there. Those that ask for more draw again, by
        scores that are changed as they ask.
        """
        num_rows = len(inputs.rows)
        tokens = self._tokens[:num_rows].clone()
        if inputs.rows_suffice:
            return Chosen(tokens)
        chosen = self._sampler.choose_asked(
            self._logits[:num_rows],
            tokens,
            inputs.sampled,
            masks,
            ahead=inputs.ahead,
            parameters=self._tables.draws(num_rows),
        )
        self._tables.keep(inputs, chosen.tokens)
        return chosen

    def _compute(self, size: int) -> None:
        logits = self._logits[:size].copy_(self._logits_of(self._tables.lay_out_decodes(size)))
        parameters = self._tables.lay_out_draws(size)
        tokens = self._tokens[:size].copy_(sample_tokens(logits, *parameters))
        self._tables.keep_decodes(size, tokens)
