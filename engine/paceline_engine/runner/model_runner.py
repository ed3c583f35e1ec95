"""One step on the device: prepare, run the decoder, sample. Implements the `Runner` port.

A decode's input token that is not known yet lies at the row of its request, where the step before
puts what it samples. On a CPU, where nothing is queued, a launch computes the step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from paceline_engine.attention.backend import AttentionBackend
from paceline_engine.attention.every_launch import launch_every_shape
from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.prefill.prompts import PromptChunk
from paceline_engine.core.batch import Batch, Next, ScheduledChunk, StepOutput
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import RowTables, StepInputs, StepTensors, to_device
from paceline_engine.drafting.acceptance import verify
from paceline_engine.errors import RequestError
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.runner.decode_graphs import DecodeGraphs
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_capture import GraphCapture
from paceline_engine.runner.graph_use import ExecutionMode, GraphUse, why_eager
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.layer_stack import layer_stack
from paceline_engine.runner.mixed_graphs import MixedGraphs
from paceline_engine.runner.token_copies import TokenCopies
from paceline_engine.runner.told_step import ToldSizes, ToldStep, decode, encode
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.masks import MaskMaker, PendingMasks
from paceline_engine.sampling.pooling import Pooling
from paceline_engine.sampling.prompt_logprobs import prompt_logprobs
from paceline_engine.sampling.sampler import NOT_A_TOKEN, HostTokens, SampledTokens, Sampler
from paceline_wire import TokenLogprobs
from paceline_wire.limits import Capacity

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step gives: tokens on the device; what waits for the rest of it, by request."""

    sampled: SampledTokens
    prompt_logprobs: Mapping[str, Callable[[], Sequence[TokenLogprobs]]] = field(
        default_factory=dict
    )
    embeddings: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    late: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    """See `StepOutput`."""


@dataclass(frozen=True, slots=True)
class ModelFlight:
    """A step on its way. Implements `Flight`."""

    batch: Batch
    sampled: tuple[Request, ...]
    computed: Computed
    fetch: Callable[[], HostTokens]

    def result(self) -> StepOutput:
        """See `Flight`."""
        token_ids, logprobs = self.fetch()
        for request, token in zip(self.sampled, token_ids, strict=True):
            if token == NOT_A_TOKEN:
                raise RequestError(request.id, "the model's output is not a number")
        left, late = iter(token_ids), self.computed.late
        tokens = [_next(chunk, left) if chunk.samples else None for chunk in self.batch.chunks]
        if late:
            ids = [chunk.request.id for chunk in self.batch.chunks]
            tokens = [
                None if id_ in late else token for id_, token in zip(ids, tokens, strict=True)
            ]
        prompt_logprobs = {id_: told() for id_, told in self.computed.prompt_logprobs.items()}
        embeddings = {id_: pooled() for id_, pooled in self.computed.embeddings.items()}
        return StepOutput(tokens, logprobs, prompt_logprobs, embeddings, late)


class ModelRunner:
    """Holds the weights and the KV memory; computes one batch at a time."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        sampler: Sampler,
        input_batch: InputBatch,
        tables: RowTables,
        *,
        adapters: LoraAdapters | None = None,
        group: Group | None = None,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self.layer_stack = layer_stack(decoder, attention)
        """Every layer in one call, where all are compiled for a CPU."""
        self._sampler = sampler
        self._input_batch = input_batch
        self._tables = tables
        self._adapters = adapters
        self._group = group or Group()
        self.device = decoder.embedding.device
        is_gpu = self.device.type == "cuda"
        self._copies = TokenCopies(self.device, input_batch.num_rows) if is_gpu else None
        self._mask_maker = MaskMaker()
        self._pooling = Pooling()
        self._decode_graphs: DecodeGraphs | None = None
        self._mixed: MixedGraphs | None = None
        self.graph_use = GraphUse()

    def launch(self, batch: Batch) -> ModelFlight:
        """See `Runner`."""
        inputs = self.prepare(batch)
        # With drafts or padding no earlier step is in flight: every earlier token is known.
        if not (inputs.rows_suffice or batch.num_drafted or batch.num_padding):
            inputs = replace(inputs, ahead=_tokens_ahead(batch))
        computed = self.compute(batch, inputs)
        sampled = computed.sampled
        fetch = sampled.on_host if self._copies is None else self._copies.start(sampled)
        return ModelFlight(batch, inputs.sampled, computed, fetch)

    def prepare(self, batch: Batch) -> StepInputs:
        """Find what the rows lack for a step, and which adapters its tokens use.

        What was prepared must be computed before the next step is prepared.
        """
        inputs = self._input_batch.prepare(batch)
        if self._adapters is None:
            return inputs
        slots = self._adapters.slots_of(batch)
        return inputs if slots is None else replace(inputs, adapter_slots=slots)

    @torch.inference_mode()
    def compute(self, batch: Batch, inputs: StepInputs) -> Computed:
        """Compute a step; what it samples stays on the device, for the next step too.

        A token is `NOT_A_TOKEN` where the model's output is not a number.
        """
        masks = None
        if not inputs.is_plain:
            masks = self._mask_maker.begin(
                inputs.sampled,
                self._decoder.config.vocab_size,
                drafts={chunk.request.id: chunk.draft for chunk in batch.drafted},
                num_chunks=len(batch.chunks),
            )
        mode = self._mode(batch)
        inputs = self._told(inputs, mode)
        if mode == "decode graph" and self._decode_graphs is not None:
            self._decode_graphs.replay(inputs)
            return Computed(self._decode_graphs.sampled(inputs, masks), late=_late(masks))
        hidden = self._hidden(inputs, mode)
        sampled = self._sample(hidden, inputs, masks)
        if not inputs.reads_prompts:
            return Computed(sampled, late=_late(masks))
        return Computed(
            sampled,
            prompt_logprobs(batch, hidden, self._decoder.logits),
            self._pooling.embeddings(batch, hidden),
            _late(masks),
        )

    def _sample(
        self, hidden: Tensor, inputs: StepInputs, masks: PendingMasks | None
    ) -> SampledTokens:
        if not inputs.sampled:
            return SampledTokens(torch.empty(0, dtype=torch.int64, device=self.device))
        sampled = self._sampler.sample(
            self._sampled_logits(hidden, inputs),
            inputs.sampled,
            masks,
            ahead=inputs.ahead,
            parameters=self._tables.parameters(inputs),
        )
        self._tables.keep(inputs, sampled.token_ids)
        return sampled

    def capture_decodes(
        self, capture: GraphCapture, sizes: Sequence[int], progress: Progress
    ) -> None:
        """Capture decodes of these sizes, up to the capacity: from now on they are replayed.

        Only where rows lie on the device. All ranks capture at the same time, in the same order:
        sums over them are in the graphs.
        """
        if not isinstance(self._tables, DeviceTables):
            raise TypeError(f"graphs need rows on the device, got {self._tables}")
        if not isinstance(self._sampler, DeviceSampler):
            raise TypeError(f"graphs need a sampler on the device, got {self._sampler}")
        decoder, attention = self._decoder, self._attention

        is_first = self._group.rank == 0

        def logits_into(step: StepTensors, out: Tensor) -> Tensor | None:
            self._use_adapters(step)
            self._group.share_(step.token_ids)
            has_adapters = step.adapter_slots is not None
            stages = decoder.stages_for(len(out), has_adapters=has_adapters)
            planned = attention.plan(step)
            hidden = decoder.hidden(step.token_ids, planned, stages=stages)
            return decoder.logits(hidden, out) if is_first else None

        graphs = DecodeGraphs(
            sizes,
            self._tables,
            logits_into,
            self._sampler,
            vocab_size=decoder.config.vocab_size,
            dtype=decoder.embedding.dtype,
            has_adapters=self._adapters is not None,
            samples=is_first,
        )
        self._group.before_leaving(self.forget_graphs)
        graphs.capture(capture, progress)
        self._decode_graphs = graphs

    def capture_mixed(
        self, capture: GraphCapture, sizes: Sequence[int], progress: Progress
    ) -> MixedGraphs:
        """Capture whole steps that are no plain decodes.

        Called after `capture_decodes`, with the same conditions; see `keep_mixed`.
        """
        tables, attention = self._tables, self._attention
        if not isinstance(tables, DeviceTables) or not isinstance(attention, KernelAttention):
            raise TypeError(f"mixed graphs need rows on the device, and kernels, got {attention}")
        if self._decode_graphs is None:
            raise TypeError("mixed graphs need decode graphs beside them")
        self._mixed = MixedGraphs(
            sizes,
            self._decoder,
            attention,
            num_rows=tables.num_rows,
            num_columns=tables.num_columns,
            adapters=self._adapters,
        )
        self._mixed.capture(capture, progress)
        return self._mixed

    @property
    def mixed_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens for which mixed graphs are used, ascending."""
        return () if self._mixed is None else self._mixed.enabled

    def keep_mixed(self, sizes: Sequence[int]) -> None:
        """Use mixed graphs of these sizes alone; give up what was captured of others.

        Where it is called on rank 0, the others do so too.
        """
        if self._group.rank == 0:
            self._group.tell(encode(ToldSizes(tuple(sizes))))
        if self._mixed is not None and sizes:
            self._mixed.keep(sizes)
        else:
            self._mixed = None

    def forget_graphs(self) -> None:
        """Give up every graph."""
        self._decode_graphs = None
        self._mixed = None

    def _mode(self, batch: Batch) -> ExecutionMode:
        """Choose how a step is computed, and count it."""
        if self._decode_graphs is None:
            return "eager"
        mode: ExecutionMode = "eager"
        if (why := why_eager(batch)) is None:
            mode = "decode graph"
        elif self._mixed and self._mixed.covers(batch):
            mode = "mixed graph"
        self.graph_use.count(mode, why)
        return mode

    def launch_attention(self, capacity: Capacity) -> None:
        """Launch every variant of attention's kernels that steps of this capacity may ask for.

        On a CPU without kernels there is none.
        """
        if isinstance(self._attention, KernelAttention):
            launch_every_shape(self._attention, capacity, dtype=self._decoder.embedding.dtype)

    def largest_gathers(self, capacity: Capacity) -> tuple[PromptChunk, ...]:
        """Return the chunks for which attention gathers the most, if it gathers anything."""
        if not isinstance(self._attention, KernelAttention):
            return ()
        longest = max(capacity.max_model_len - 1, 1)  # the token that follows needs a place
        return self._attention.prefill.largest_gathers(capacity.max_token_budget, longest)

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:  # [R, vocab]
        """Run the decoder and return the logits of the tokens that sample; none is sampled."""
        inputs = self._told(self.prepare(batch), "eager")
        return self._sampled_logits(self._hidden(inputs, "eager"), inputs)

    @torch.inference_mode()
    def follow(self) -> None:
        """Run every step that rank 0 sends, until it sends no more."""
        while (heard := self._group.hear()) is not None:
            told = decode(heard)
            if isinstance(told, ToldSizes):
                self.keep_mixed(told.sizes)
            elif told.mode == "decode graph" and self._decode_graphs is not None:
                self._decode_graphs.replay(told.inputs)
            else:
                self._hidden(told.inputs, told.mode)

    def _told(self, inputs: StepInputs, mode: ExecutionMode) -> StepInputs:
        """Send a step to the other ranks; return it with the tokens that all ranks know."""
        if self._group.size == 1:
            return inputs
        inputs = self._tables.with_tokens(inputs)
        self._group.tell(encode(ToldStep(mode, inputs)))
        return inputs

    def _hidden(self, inputs: StepInputs, mode: ExecutionMode) -> Tensor:  # [kept, hidden]
        step = self._tables.lay_out(inputs)
        if self._group.size > 1 and inputs.has_tokens_at_rows:
            self._group.share_(step.token_ids[: inputs.num_decodes])
        kept = inputs.kept_rows
        rows = None if kept is None else to_device(kept, self.device)
        self._use_adapters(step, rows)
        if mode == "mixed graph" and self._mixed is not None:
            return self._mixed.hidden(step, rows)
        if self.layer_stack is not None:
            return self.layer_stack.hidden(step, rows)
        return self._decoder.hidden(step.token_ids, self._attention.plan(step), rows)

    def _use_adapters(self, step: StepTensors, kept_rows: Tensor | None = None) -> None:
        if self._adapters is not None:
            self._adapters.use(step.adapter_slots, kept_rows)

    def _sampled_logits(self, hidden: Tensor, inputs: StepInputs) -> Tensor:  # [R, vocab]
        if inputs.keeps_every_state:
            hidden = hidden[to_device(inputs.sample_rows, self.device)]
        return self._decoder.logits(hidden)


def _late(masks: PendingMasks | None) -> Mapping[str, Callable[[], bool]]:
    return {} if masks is None else masks.late


def _tokens_ahead(batch: Batch) -> tuple[int, ...]:  # [R]
    """Return how many tokens on their way lie between the last known one and each sampled one.

    The host must not have settled a step since the batch was scheduled.
    """
    return tuple(
        [
            chunk.start + chunk.count - len(chunk.request.token_ids)
            for chunk in batch.chunks
            if chunk.samples
        ]
    )


def _next(chunk: ScheduledChunk, sampled: Iterator[int]) -> Next:
    """Take the tokens of a chunk, in order; behind a draft, those that are accepted."""
    if not chunk.draft:
        return next(sampled)
    return verify(chunk.draft, list(islice(sampled, len(chunk.draft) + 1)))
