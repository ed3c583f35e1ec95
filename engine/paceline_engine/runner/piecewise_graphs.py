"""CUDA graphs of what a decoder computes between its attentions, for a ladder of token counts.

What lies between attentions depends on the step's tokens alone, so its graphs serve every step:
prompts beside decodes, drafts that are verified. Attention, and what follows it in the last layer
for the tokens that are read, are computed op by op. A step is padded to the next size by whatever
lies in the tensors behind its tokens: no graph mixes tokens, and attention sees only the step's.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.graph_sizes import padded_size
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.runner.graph_capture import GraphCapture, Replay


class PiecewiseGraphs:
    """The piecewise graphs of one model, and the tensors through which they reach each other."""

    def __init__(
        self,
        sizes: Sequence[int],
        decoder: Decoder,
        attention: KernelAttention,
        adapters: LoraAdapters | None = None,
    ) -> None:
        """`sizes` are numbers of tokens, ascending.

        With `adapters`, each size is captured once with them and once without.
        """
        self.sizes = tuple(sizes)
        self._decoder = decoder
        self._attention = attention
        self._adapters = adapters
        self._kinds = (False,) if adapters is None else (True, False)
        config = decoder.config

        def zeros(width: int) -> Tensor:
            return torch.zeros(sizes[-1], width, dtype=decoder.embedding.dtype, device=device)

        device = decoder.embedding.device
        self._token_ids = torch.zeros(sizes[-1], dtype=torch.int64, device=device)
        self._attended = zeros(config.num_q_heads * config.head_size)
        self._qkv = zeros(config.qkv_size)
        self._residual = zeros(config.hidden_size)
        # What lies behind a step's tokens is an earlier step's: slots that there are, too.
        self._slots = torch.full_like(self._token_ids, -1)
        self._replays: dict[tuple[int, bool], tuple[Replay, ...]] = {}
        self._enabled: frozenset[int] = frozenset()

    @torch.inference_mode()
    def capture(self, capture: GraphCapture, progress: Callable[[float], None]) -> None:
        """Capture every size, the largest first: the others fit into the memory it has taken."""
        wanted = list(product(reversed(self.sizes), self._kinds))
        for done, (size, has_adapters) in enumerate(wanted):
            progress(done / len(wanted))
            slots = self._slots[:size] if has_adapters else None
            computes = [partial(self._first, size, slots)]
            computes += [
                partial(self._between, size, slots, index)
                for index in range(len(self._decoder.layers) - 1)
            ]
            self._replays[size, has_adapters] = tuple(map(capture.capture, computes))
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

    def covers(self, num_tokens: int) -> bool:
        """Tell whether steps of so many tokens are computed with these graphs."""
        return num_tokens <= self.sizes[-1] and self._size_of(num_tokens) in self._enabled

    def hidden(
        self,
        step: StepTensors,
        kept_rows: Tensor | None,  # [kept]
    ) -> Tensor:  # [kept, hidden]
        """Compute a step of a size that is enabled; see `Decoder.hidden`."""
        num_tokens = len(step.token_ids)
        if step.adapter_slots is not None:
            self._slots[:num_tokens].copy_(step.adapter_slots)
        graphs = _StepGraphs(
            self._replays[self._size_of(num_tokens), step.adapter_slots is not None],
            token_ids=self._token_ids[:num_tokens],
            attended=self._attended[:num_tokens],
            given=(self._qkv[:num_tokens], self._residual[:num_tokens]),
            last=self._decoder.finish,
        )
        attention = self._attention.plan(step, into=graphs.attended)
        return self._decoder.hidden(step.token_ids, attention, kept_rows, graphs)

    def _size_of(self, num_tokens: int) -> int:
        return padded_size(self.sizes, num_tokens)

    def _first(self, size: int, slots: Tensor | None) -> None:
        with self._using(slots):
            _leave(self._given(size), self._decoder.first(self._token_ids[:size]))

    def _between(self, size: int, slots: Tensor | None, index: int) -> None:
        attended, given = self._attended[:size], self._given(size)
        with self._using(slots):
            # The layer's MLP has read the stream before the next norm writes it.
            _leave(given, self._decoder.between(index, attended, given[1], given))

    def _using(self, slots: Tensor | None) -> AbstractContextManager[None]:
        return nullcontext() if self._adapters is None else self._adapters.using(slots)

    def _given(self, size: int) -> tuple[Tensor, Tensor]:
        """Return where a piece leaves qkv and the residual stream."""
        return self._qkv[:size], self._residual[:size]


def _leave(places: tuple[Tensor, Tensor], results: tuple[Tensor, Tensor]) -> None:
    """Copy what was not written where the next piece reads it."""
    for place, result in zip(places, results, strict=True):
        if result is not place:
            place.copy_(result)


@dataclass(frozen=True, slots=True)
class _StepGraphs:
    """One step's part of the tensors, of T tokens. Implements `DecoderStages`."""

    replays: tuple[Replay, ...]
    token_ids: Tensor  # [T]
    attended: Tensor  # [T, num_q_heads * head_size]
    given: tuple[Tensor, Tensor]  # qkv [T, qkv_size] and residual stream [T, hidden]
    last: Callable[[Tensor, Tensor], Tensor]

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        self.token_ids.copy_(token_ids)
        self.replays[0]()
        return self.given

    def between(
        self,
        index: int,
        attended: Tensor,
        residual: Tensor,  # noqa: ARG002 - it lies where the graph reads it
    ) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        if attended is not self.attended:
            self.attended.copy_(attended)
        self.replays[index + 1]()
        return self.given

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """See `DecoderStages`."""
        return self.last(attended, residual)
