"""CUDA graphs of whole steps that are no plain decodes, for a ladder of token counts.

One graph serves every step of up to that many tokens: prompts beside decodes, drafts to verify.
Kernels are launched for the most decodes and chunks that such a step may have, and read the actual
numbers on the device. Rows past the step's tokens hold stale data: they are computed and ignored,
because only attention mixes tokens, and it sees the step's tokens alone.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product

import torch
from torch import Tensor

from paceline_engine.attention.kernel_attention import Contexts, KernelAttention, KernelStep
from paceline_engine.attention.prefill.prompts import PromptChunk, Prompts
from paceline_engine.core.batch import Batch
from paceline_engine.core.graph_sizes import MOST_CHUNKS, padded_size
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.runner.graph_capture import GraphCapture, Replay

_NOWHERE = -1
"""The slot of a token whose keys and values nobody stores."""


class MixedGraphs:
    """The graphs of one model's mixed steps, and the tensors that they read and write."""

    def __init__(
        self,
        sizes: Sequence[int],
        decoder: Decoder,
        attention: KernelAttention,
        *,
        num_rows: int,
        num_columns: int,
        adapters: LoraAdapters | None = None,
    ) -> None:
        """`sizes` are numbers of tokens, ascending.

        `num_rows` is the most sequences of a step, and `num_columns` the most blocks of one. With
        `adapters`, each size is captured once with them and once without.
        """
        self.sizes = tuple(sizes)
        self._decoder = decoder
        self._attention = attention
        self._adapters = adapters
        self._kinds = (False,) if adapters is None else (True, False)
        device, most = decoder.embedding.device, sizes[-1]
        self._step = _StaticStep(most, min(num_rows, most), num_columns, device)
        self._hidden = torch.zeros(
            most, decoder.config.hidden_size, dtype=decoder.embedding.dtype, device=device
        )
        self._replays: dict[tuple[int, bool], Replay] = {}
        self._enabled: frozenset[int] = frozenset()

    @torch.inference_mode()
    def capture(self, capture: GraphCapture, progress: Callable[[float], None]) -> None:
        """Capture every size, the largest first: the others fit into the memory it has taken."""
        wanted = list(product(reversed(self.sizes), self._kinds))
        for done, (size, has_adapters) in enumerate(wanted):
            progress(done / len(wanted))
            compute = partial(self._compute, size, has_adapters=has_adapters)
            self._replays[size, has_adapters] = capture.capture(compute)
        self._enabled = frozenset(self.sizes)

    @property
    def enabled(self) -> tuple[int, ...]:
        """Sizes that steps are computed with, ascending."""
        return tuple(sorted(self._enabled))

    def enable(self, sizes: Collection[int]) -> None:
        """Use these sizes alone, until the next call."""
        self._enabled = frozenset(sizes)

    def keep(self, sizes: Collection[int]) -> None:
        """Use these sizes alone, and forget the others."""
        self._replays = {
            (size, kind): self._replays[size, kind] for size in sizes for kind in self._kinds
        }
        self._enabled = frozenset(sizes)

    def covers(self, batch: Batch) -> bool:
        """Tell whether a step is computed with these graphs: our kernel attends for its chunks."""
        num_tokens = batch.num_tokens
        if num_tokens > self.sizes[-1] or self._size_of(num_tokens) not in self._enabled:
            return False
        chunks = tuple(
            PromptChunk(chunk.count, chunk.start + chunk.count)
            for chunk in batch.chunks[batch.num_decodes :]
        )
        prefill = self._attention.prefill
        return len(chunks) <= MOST_CHUNKS and prefill.of_step(chunks) is prefill.ours

    def hidden(
        self,
        step: StepTensors,
        kept_rows: Tensor | None,  # [kept]
    ) -> Tensor:  # [kept, hidden]
        """Compute a step that is covered; see `Decoder.hidden`."""
        num_tokens = len(step.token_ids)
        size = self._size_of(num_tokens)
        self._step.fill(step, size)
        self._replays[size, step.adapter_slots is not None]()
        hidden = self._hidden[:num_tokens]
        return hidden.clone() if kept_rows is None else hidden[kept_rows]

    def _size_of(self, num_tokens: int) -> int:
        return padded_size(self.sizes, num_tokens)

    def _compute(self, size: int, *, has_adapters: bool) -> None:
        step, decoder = self._step, self._decoder
        stages = decoder.stages_for(size, has_adapters=has_adapters)
        with self._using(step.adapter_slots[:size] if has_adapters else None):
            attention = step.attention(size, self._attention)
            hidden = decoder.hidden(step.token_ids[:size], attention, stages=stages)
        self._hidden[:size].copy_(hidden)

    def _using(self, slots: Tensor | None) -> AbstractContextManager[None]:
        return nullcontext() if self._adapters is None else self._adapters.using(slots)


class _StaticStep:
    """A step's tensors, taken once: a step of a size uses the first of them.

    Contexts and chunks have places of their own, however many of each there are.
    """

    def __init__(
        self, num_tokens: int, num_rows: int, num_columns: int, device: torch.device
    ) -> None:
        def zeros(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        num_chunks = min(num_rows, MOST_CHUNKS)
        self.token_ids = zeros(num_tokens)
        self.adapter_slots = zeros(num_tokens) + _NOWHERE
        self._positions = zeros(num_tokens)
        self._slots = zeros(num_tokens) + _NOWHERE
        self._decodes = Contexts(
            zeros(num_rows, num_columns, dtype=torch.int32), zeros(num_rows, dtype=torch.int32)
        )
        self._chunks = Contexts(
            zeros(num_chunks, num_columns, dtype=torch.int32), zeros(num_chunks, dtype=torch.int32)
        )
        self._bounds = zeros(num_chunks + 1, dtype=torch.int32)

    def fill(self, step: StepTensors, size: int) -> None:
        """Put a step in; what is behind it stores nothing and attends to nothing."""
        num_tokens, split = len(step.token_ids), step.num_decodes
        num_chunks, width = len(step.chunks), step.block_table.shape[1]
        self.token_ids[:num_tokens].copy_(step.token_ids)
        self._positions[:num_tokens].copy_(step.positions)
        self._slots[:num_tokens].copy_(step.slots)
        self._slots[num_tokens:size].fill_(_NOWHERE)
        if step.adapter_slots is not None:
            self.adapter_slots[:num_tokens].copy_(step.adapter_slots)
        self._decodes.context_lens.zero_()
        self._decodes.context_lens[:split].copy_(step.context_lens[:split])
        self._decodes.block_table[:split, :width].copy_(step.block_table[:split])
        self._chunks.context_lens[:num_chunks].copy_(step.context_lens[split:])
        self._chunks.block_table[:num_chunks, :width].copy_(step.block_table[split:])
        self._bounds.fill_(num_tokens)
        self._bounds[:num_chunks].copy_(step.bounds[split:-1])

    def attention(self, size: int, backend: KernelAttention) -> KernelStep:
        """Plan attention over the step that is put in, of up to so many tokens."""
        rows, chunks = size, min(size, len(self._bounds) - 1)
        slots = self._slots[:size]
        return KernelStep(
            backend,
            self._positions[:size],
            slots,
            Contexts(self._decodes.block_table[:rows], self._decodes.context_lens[:rows]),
            Prompts(
                chunks=(),  # of the captured step, which is nobody's
                block_table=self._chunks.block_table[:chunks],
                cu_seqlens=self._bounds[: chunks + 1],
                context_lens=self._chunks.context_lens[:chunks],
                slots=slots,
                block_size=backend.kv.block_size,
            ),
            backend.prefill.ours,
            first_prompt=0,
        )
