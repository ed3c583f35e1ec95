"""One step on the device: prepare, attend and multiply, sample. Implements the `Runner` port."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from paceline_engine.attention.backend import AttentionBackend
from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.flight import Next
from paceline_engine.core.request import Request
from paceline_engine.core.step_inputs import StepInputs
from paceline_engine.core.step_tensors import RowTables
from paceline_engine.core.to_device import to_device
from paceline_engine.drafting.acceptance import verify
from paceline_engine.errors import RequestError
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.runner.cuda_graphs import DecodeGraphs, GraphCapture
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_use import GraphUse, Way, why_eager
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.piecewise_graphs import PiecewiseGraphs
from paceline_engine.sampling.chosen import Chooser, Chosen
from paceline_engine.sampling.likeliest import NOT_A_TOKEN
from paceline_engine.sampling.masks import MaskMaker, PendingMasks
from paceline_engine.sampling.on_device import DeviceSampler
from paceline_engine.sampling.pooling import pool_prompts
from paceline_engine.sampling.prompt import score_prompts

Progress = Callable[[float], None]


class ModelRunner:
    """Holds the weights and the KV memory; computes one batch at a time."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        sampler: Chooser,
        book: InputBatch,
        tables: RowTables,
        *,
        adapters: LoraAdapters | None = None,
        group: Group | None = None,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampler = sampler
        self._book = book
        self._tables = tables
        self._adapters = adapters
        self._group = group or Group()
        self.device = decoder.embedding.device
        self._mask_maker = MaskMaker()
        self._graphs: DecodeGraphs | None = None
        self._pieces: PiecewiseGraphs | None = None
        self.graph_use = GraphUse()

    def run(self, batch: Batch) -> list[Next]:
        """Compute every slice and write its KV; what follows each slice that samples."""
        inputs = self.prepare(batch)
        sampled = self.sampled(batch, inputs).on_host()
        require_tokens(inputs.sampled, sampled)
        tokens = iter(sampled)
        if batch.num_drafted:
            return [_verified(piece, tokens) for piece in batch.chunks]
        return [next(tokens) if piece.samples else None for piece in batch.chunks]

    def prepare(self, batch: Batch) -> StepInputs:
        """Find out what a step needs that its rows lack, and choose the adapters of its tokens.

        What was prepared is to be computed, before the next is prepared.
        """
        inputs = self._book.prepare(batch)
        # An adapter is chosen for every token of the step.
        if self._adapters is not None and self._adapters.choose(batch):
            return replace(inputs, keeps_every_state=True)
        return inputs

    @torch.inference_mode()
    def sampled(self, batch: Batch, inputs: StepInputs) -> Chosen:  # [R]
        """Compute a step; what it samples, left on the device, for the next step too.

        Aligned with `inputs.sampled`; `NOT_A_TOKEN` where the model's output is not a number.
        """
        vocab_size = self._decoder.config.vocab_size
        masks = None
        if not inputs.rows_suffice:
            masks = self._mask_maker.begin(inputs.sampled, vocab_size)
        way = self._way(batch)
        if way == "replayed" and self._graphs is not None:
            self._graphs.replay(inputs)
            return self._graphs.chosen(inputs, masks)
        hidden = self._hidden(inputs, self._pieces if way == "in pieces" else None)
        score_prompts(batch, hidden, self._decoder.logits)
        pool_prompts(batch, hidden)
        if not inputs.sampled:
            return Chosen(torch.empty(0, dtype=torch.int64, device=self.device))
        logits = self._sampled_logits(hidden, inputs)
        return self._chosen(logits, inputs, masks)

    def _chosen(self, logits: Tensor, inputs: StepInputs, masks: PendingMasks | None) -> Chosen:
        parameters = self._tables.parameters(inputs)
        chosen = self._sampler.choose(
            logits, inputs.sampled, masks, ahead=inputs.ahead, parameters=parameters
        )
        self._tables.keep(inputs, chosen.tokens)
        return chosen

    def record(self, recorder: GraphCapture, sizes: Sequence[int], progress: Progress) -> None:
        """Record decodes of these sizes, up to the capacity: from now on they are replayed.

        For one rank whose rows lie on the device.
        """
        if not isinstance(self._tables, DeviceTables) or self._group.size > 1:
            raise TypeError(f"graphs need one rank, and rows on the device, got {self._tables}")
        if not isinstance(self._sampler, DeviceSampler):
            raise TypeError(f"graphs need a sampler on the device, got {self._sampler}")
        decoder, attention = self._decoder, self._attention
        graphs = DecodeGraphs(
            sizes,
            self._tables,
            lambda step: decoder.logits(decoder.hidden(step.token_ids, attention.plan(step))),
            self._sampler,
            recorder,
            vocab_size=decoder.config.vocab_size,
            dtype=decoder.embedding.dtype,
        )
        graphs.record(progress)
        self._graphs = graphs

    def record_pieces(
        self, recorder: GraphCapture, sizes: Sequence[int], progress: Progress
    ) -> PiecewiseGraphs:
        """Record what lies between attentions, for steps that are no plain decodes; `keep_pieces`.

        Behind `record`, and for whom that is.
        """
        if self._graphs is None or not isinstance(self._attention, KernelAttention):
            raise TypeError(f"pieces need recorded decodes and kernels, got {self._attention}")
        self._pieces = PiecewiseGraphs(sizes, self._decoder, self._attention, recorder)
        self._pieces.record(progress)
        return self._pieces

    @property
    def sizes_in_pieces(self) -> tuple[int, ...]:
        """Numbers of tokens up to which steps are computed in pieces, ascending."""
        return () if self._pieces is None else self._pieces.served

    def keep_pieces(self, sizes: Sequence[int]) -> None:
        """Compute steps of these sizes alone in pieces; give up what was recorded of others."""
        if self._pieces is not None and sizes:
            self._pieces.keep(sizes)
        else:
            self._pieces = None

    def _way(self, batch: Batch) -> Way:
        """Choose how a step is computed, and count it."""
        if self._graphs is None:
            return "eager"
        way: Way = "eager"
        if (why := why_eager(batch)) is None:
            way = "replayed"
        elif why != "adapter" and self._pieces and self._pieces.serves(batch.num_tokens):
            way = "in pieces"
        self.graph_use.count(way, why)
        return way

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:  # [R, vocab]
        """Run the decoder; the scores of the tokens that sample. None of them is chosen."""
        inputs = self.prepare(batch)
        return self._sampled_logits(self._hidden(inputs), inputs)

    @torch.inference_mode()
    def follow(self) -> None:
        """Run every step that rank 0 tells of, until it tells of no more."""
        while isinstance(inputs := self._group.hear(), StepInputs):
            self._run_decoder(inputs)

    def _hidden(
        self, inputs: StepInputs, pieces: PiecewiseGraphs | None = None
    ) -> Tensor:  # [kept, hidden]
        if self._group.size > 1:
            self._group.tell(replace(inputs, sampled=()))
        return self._run_decoder(inputs, pieces)

    def _run_decoder(
        self, inputs: StepInputs, pieces: PiecewiseGraphs | None = None
    ) -> Tensor:  # [kept, hidden]
        step = self._tables.lay_out(inputs)
        kept = inputs.kept_rows
        rows = None if kept is None else to_device(kept, self.device)
        if pieces is not None:
            return pieces.hidden(step, rows)
        return self._decoder.hidden(step.token_ids, self._attention.plan(step), rows)

    def _sampled_logits(self, hidden: Tensor, inputs: StepInputs) -> Tensor:  # [R, vocab]
        if inputs.keeps_every_state:
            hidden = hidden[to_device(inputs.sample_rows, self.device)]
        return self._decoder.logits(hidden)


def require_tokens(sampled: Sequence[Request], tokens: Sequence[int]) -> None:
    """Raise the `RequestError` of a row whose scores are not numbers."""
    for request, token in zip(sampled, tokens, strict=True):
        if token == NOT_A_TOKEN:
            raise RequestError(request.id, "the model's output is not a number")


def _verified(piece: ScheduledChunk, tokens: Iterator[int]) -> Next:
    if not piece.samples:
        return None
    if not piece.draft:
        return next(tokens)
    return verify(piece.draft, list(islice(tokens, len(piece.draft) + 1)))
