"""Draft tokens of a second, smaller model, which keeps its keys and values beside the first one's.

Its cache has as many blocks of the same size, and a request's tokens lie in blocks of the same
numbers: nothing more is allocated, and nothing is copied when blocks are. It computes a request's
tokens only when it is asked to, and then one draft token after the other, of all requests together.
A draft token is chosen as the model's own tokens are, with the request's number for the place: two
models that agree draw the same token. An error in its cache only makes drafts worse; it changes
nobody's output.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline_engine.core.batch import Batch, Runner, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.drafting.draft_sequence import DraftSequence, DraftSequences
from paceline_engine.drafting.proposer import Ask, Proposal
from paceline_engine.errors import RequestError
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import ModelInfo, Sampling, StepFeatures
from paceline_wire.limits import Capacity
from paceline_wire.step_cost import chunk_attention

_WARM_UP_PASSES = 3
"""Passes that are not measured: the first ones pay for allocations and caches."""
_ROUNDS = 7
_ROUND_TOKENS = 32
_ROUND_DRAFT_TOKENS = 4
"""Rounds and their sizes: enough passes for a first fit of what one costs."""
_PATIENCE = 0.9998
"""Factor on a draft's price for each step that it is too costly for: eventually it is
tried again."""


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model on the first model's device, with a cache beside the first model's."""

    runner: Runner
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request in a call: the known tokens that are computed first, then the draft wanted."""

    sequence: DraftSequence
    ask: Ask
    start: int
    count: int

    @property
    def draws(self) -> bool:
        """Whether all known tokens are computed by then and a draft is wanted."""
        return self.ask.count > 0 and self.count == self.sequence.pending


class DraftModel:
    """Implements the `Proposer` port by a runner of its own, whose passes it times and prices."""

    first_chance = 0.8
    takes_time = True

    def __init__(
        self, runner: Runner, pacer: Pacer, capacity: Capacity, clock: Callable[[], float]
    ) -> None:
        """`pacer` learns from the passes as an engine's does from its steps."""
        self._runner = runner
        self._pacer = pacer
        self._capacity = capacity
        self._clock = clock
        self._sequences = DraftSequences(capacity.block_size)
        self._num_passes = 0
        self._patience = 1.0

    def warm_up(self) -> None:
        """Measure passes before the first request, in blocks that are free again after."""
        capacity = self._capacity
        room = min(capacity.max_model_len, capacity.num_blocks * capacity.block_size)
        draft_tokens = min(_ROUND_DRAFT_TOKENS, room - 1)
        if draft_tokens < 1:
            return
        length = min(_ROUND_TOKENS, capacity.max_token_budget, room - draft_tokens)
        num_blocks = -(-(length + draft_tokens) // capacity.block_size)
        for number in range(_ROUNDS):
            request = Request(
                id=f"warm-up {number}",
                token_ids=[0] * length,
                num_prompt_tokens=length,
                sampling=Sampling(max_tokens=draft_tokens, temperature=0.0),
                row=0,
                block_ids=list(range(num_blocks)),
            )
            self.propose([Ask(request, length, draft_tokens, chance=1.0)])
            self.forget(request)

    def reach(self, request: Request, most: int) -> int:
        """See `Proposer`: as many as wanted."""
        return 0 if self._sequences.of(request).is_broken else most

    def pending(self, request: Request) -> int:
        """See `Proposer`."""
        return self._sequences.of(request).pending

    def ms(self, asks: Sequence[Ask]) -> float:
        """See `Proposer`: one pass over what is pending, then one for each further draft token."""
        if not asks:
            return 0.0
        lengths = [(len(ask.request.token_ids), ask.pending) for ask in asks]
        single = [length for length, pending in lengths if pending <= 1]
        several = [(length, pending) for length, pending in lengths if pending > 1]
        pairs = sum(int(chunk_attention(pending, length - pending)) for length, pending in several)
        prefill = sum(pending for _, pending in several)
        total = self._pacer.predict_ms(StepFeatures(len(single), prefill, sum(single), pairs))
        mean_context = sum(length for length, _ in lengths) / len(lengths)
        passes = Counter(
            sum(ask.count > place for ask in asks)
            for place in range(1, max(ask.count for ask in asks))
        )
        for rows, count in passes.items():
            total += count * self._pass_ms(rows, int(rows * mean_context))
        return total * self._patience

    def ms_of_one(self, rows: int, context: int) -> float:
        """See `Proposer`."""
        self._patience *= _PATIENCE
        return self._pass_ms(rows, context) * self._patience

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """See `Proposer`."""
        started = self._clock()
        self._patience = 1.0
        turns = [self._turn(ask) for ask in asks]
        # Chunks of one token come first, as in every batch.
        turns.sort(key=lambda turn: turn.count > 1)
        for some in self._within_a_pass(turns):
            self._compute(some, [(turn.start, turn.count, turn.draws) for turn in some])
        place = 1
        while drawing := [
            turn for turn in turns if len(turn.sequence.draft) == place < turn.ask.count
        ]:
            self._compute(
                drawing, [(len(turn.sequence.own.token_ids) - 1, 1, True) for turn in drawing]
            )
            place += 1
        drafts = {turn.ask.request.id: turn.sequence.draft for turn in turns}
        ms = (self._clock() - started) * 1e3
        return Proposal({id_: draft for id_, draft in drafts.items() if draft}, ms)

    def forget(self, request: Request) -> None:
        """See `Proposer`."""
        self._sequences.forget(request)

    def _turn(self, ask: Ask) -> _Turn:
        sequence = self._sequences.of(ask.request)
        start = len(sequence.own.token_ids) - sequence.pending
        return _Turn(sequence, ask, start, min(ask.pending, sequence.pending))

    def _within_a_pass(self, turns: Sequence[_Turn]) -> Iterator[list[_Turn]]:
        """Group the turns so that no pass has more tokens than a step may have."""
        some: list[_Turn] = []
        tokens = 0
        for turn in turns:
            if some and tokens + turn.count > self._capacity.max_token_budget:
                yield some
                some, tokens = [], 0
            some.append(turn)
            tokens += turn.count
        if some:
            yield some

    def _compute(self, turns: Sequence[_Turn], parts: Sequence[tuple[int, int, bool]]) -> None:
        """Run one pass; each turn's part is where it starts, its tokens, and whether it draws."""
        chunks = [
            ScheduledChunk(turn.sequence.own, start, count, samples=draws, is_decode=count == 1)
            for turn, (start, count, draws) in zip(turns, parts, strict=True)
        ]
        batch = Batch(tuple(chunks), num_decodes=sum(chunk.is_decode for chunk in chunks))
        started = self._clock()
        try:
            tokens = self._runner.launch(batch).result().tokens
        except RequestError as error:
            for turn in turns:
                turn.sequence.is_broken |= turn.ask.request.id == error.request_id
            return
        self._learn(batch, started)
        for turn, chunk, token in zip(turns, chunks, tokens, strict=True):
            self._sequences.computed(turn.sequence, turn.ask.request, chunk.start, chunk.count)
            if isinstance(token, int):
                chunk.request.token_ids.append(token)

    def _learn(self, batch: Batch, started: float) -> None:
        ended = self._clock()
        decodes = batch.chunks[: batch.num_decodes]
        features = batch.features(context=sum(chunk.start + 1 for chunk in decodes))
        measured = features.measured((ended - started) * 1e3)
        is_clean = self._num_passes >= _WARM_UP_PASSES
        self._num_passes += 1
        self._pacer.observe(measured, at=ended, clean=is_clean)

    def _pass_ms(self, rows: int, context: int) -> float:
        return self._pacer.predict_ms(StepFeatures(rows, 0, context, 0))
