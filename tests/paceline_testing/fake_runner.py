"""A model without weights: its next token depends on the whole sequence, read from its blocks."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from paceline_engine.core.batch import Batch, Next, ScheduledChunk, StepOutput
from paceline_engine.drafting.acceptance import verify
from paceline_engine.kv_cache.swap import BlockCopy
from paceline_wire.limits import Capacity


def next_token(token_ids: list[int], vocab_size: int) -> int:
    """The token that follows a sequence: a hash of all of it."""
    text = ",".join(map(str, token_ids)).encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "big") % vocab_size


def continuation(prompt_ids: list[int], count: int, vocab_size: int) -> list[int]:
    """What a prompt alone is answered with."""
    token_ids = list(prompt_ids)
    for _ in range(count):
        token_ids.append(next_token(token_ids, vocab_size))
    return token_ids[len(prompt_ids) :]


def right_at(of_eight: int, vocab_size: int) -> Callable[[list[int]], int]:
    """A draft model that is right at so many of eight places."""

    def guess(known: list[int]) -> int:
        slips = len(known) % 8 >= of_eight
        return (next_token(known, vocab_size) + slips) % vocab_size

    return guess


class FakeRunner:
    """Keeps tokens in block slots where a model keeps keys and values.

    It reads the sequence back from the blocks, so a block that was given to two requests, freed
    too early or found under a wrong hash gives a wrong token or an error.
    """

    def __init__(self, capacity: Capacity, vocab_size: int = 1000) -> None:
        self.vocab_size = vocab_size
        self._capacity = capacity
        self.slots: list[int | None] = [None] * (capacity.num_blocks * capacity.block_size)
        self.before_run: Callable[[Batch], None] = lambda _: None
        self.before_choice: Callable[[list[int]], None] = lambda _: None

    def launch(self, batch: Batch) -> "DoneFlight":
        """Write every chunk, then read the whole context of those that sample."""
        self.before_run(batch)
        self.check_rows(batch)
        for chunk in batch.chunks:
            self._write(chunk)
        tokens = [self._sample(chunk) if chunk.samples else None for chunk in batch.chunks]
        return DoneFlight(StepOutput(tokens))

    @property
    def block_size(self) -> int:
        """Slots of one block."""
        return self._capacity.block_size

    def block(self, block_id: int) -> slice:
        """Where a block's slots are."""
        size = self._capacity.block_size
        return slice(block_id * size, (block_id + 1) * size)

    def _write(self, chunk: ScheduledChunk) -> None:
        token_ids = (*chunk.request.token_ids, *chunk.draft)
        for position in range(chunk.start, chunk.start + chunk.count):
            self.slots[self._slot(chunk, position)] = token_ids[position]

    def _sample(self, chunk: ScheduledChunk) -> Next:
        end = chunk.start + chunk.count
        read = [self.slots[self._slot(chunk, position)] for position in range(end)]
        known = [token for token in read if token is not None]
        token_ids = [*chunk.request.token_ids, *chunk.draft]
        assert known == token_ids[:end], f"{chunk.request.id} lost its context"
        if not chunk.draft:
            return self.choose(known)
        first = end - len(chunk.draft)
        return verify(chunk.draft, [self.choose(known[:i]) for i in range(first, end + 1)])

    def choose(self, known: list[int]) -> int:
        """The token that follows."""
        self.before_choice(known)
        return next_token(known, self.vocab_size)

    def _slot(self, chunk: ScheduledChunk, position: int) -> int:
        size = self._capacity.block_size
        return chunk.request.block_ids[position // size] * size + position % size

    def check_rows(self, batch: Batch) -> None:
        rows: Collection[int | None] = [
            chunk.request.row for chunk in batch.chunks if not chunk.is_padding
        ]
        assert None not in rows, "a request without a row runs"
        assert len(set(rows)) == len(rows), f"two requests share a row: {rows}"
        assert max((row for row in rows if row is not None), default=0) < (
            self._capacity.max_batch_size
        )


@dataclass(frozen=True, slots=True)
class DoneFlight:
    """A step that has run already."""

    output: StepOutput

    def result(self) -> StepOutput:
        """Return what came of it."""
        return self.output


@dataclass(frozen=True, slots=True)
class _Row:
    """A chunk as it was when its step was launched."""

    row: int
    token_ids: list[int]
    """As far as the host knew them."""
    start: int
    end: int
    block_ids: list[int]
    samples: bool


class LateRunner:
    """Runs steps as late as a `Runner` may: when their tokens are asked for, in their order.

    Till then it keeps of a request only what a launch copies to a device, and the token that the
    step before samples only by row, as a device does.
    """

    def __init__(self, inner: FakeRunner, num_rows: int) -> None:
        self.inner = inner
        self._latest: list[int | None] = [None] * num_rows
        self._queue: list[LateFlight] = []

    def launch(self, batch: Batch) -> "DoneFlight | LateFlight":
        """Note what the step needs. No step is on its way beside drafts and padding."""
        if batch.num_drafted or batch.num_padding:
            assert not self._queue
            return self.inner.launch(batch)
        self.inner.before_run(batch)
        self.inner.check_rows(batch)
        flight = LateFlight(self, [_row(chunk) for chunk in batch.chunks])
        self._queue.append(flight)
        return flight

    def run_until(self, last: "LateFlight") -> StepOutput:
        """Run what was launched, in order; what a step that nobody asked for gives is lost."""
        while True:
            flight = self._queue.pop(0)
            tokens = [self._run(row) for row in flight.rows]
            if flight is last:
                return StepOutput(tokens)

    def _run(self, row: _Row) -> Next:
        runner, size = self.inner, self.inner.block_size
        token_ids = row.token_ids
        if row.end > len(token_ids):
            latest = self._latest[row.row]
            assert latest is not None, "nobody has sampled for this row"
            token_ids = [*token_ids, latest]
        places = [
            row.block_ids[position // size] * size + position % size for position in range(row.end)
        ]
        for position in range(row.start, row.end):
            runner.slots[places[position]] = token_ids[position]
        if not row.samples:
            return None
        read = [runner.slots[place] for place in places]
        assert read == token_ids[: row.end], f"row {row.row} lost its context"
        self._latest[row.row] = token = runner.choose(token_ids[: row.end])
        return token


@dataclass(eq=False, slots=True)
class LateFlight:
    """One step of a `LateRunner`."""

    runner: LateRunner
    rows: list[_Row]

    def result(self) -> StepOutput:
        """Run it, after those before it."""
        return self.runner.run_until(self)


def _row(chunk: ScheduledChunk) -> _Row:
    request = chunk.request
    assert request.row is not None
    end = chunk.start + chunk.count
    assert end <= len(request.token_ids) + 1, "the token before the last is not known either"
    return _Row(
        request.row,
        list(request.token_ids),
        chunk.start,
        end,
        list(request.block_ids),
        chunk.samples,
    )


class FakeSwapper:
    """Host memory beside a `FakeRunner`'s slots, at a price that a test says."""

    def __init__(
        self, runner: FakeRunner, num_slots: int, block_ms: float = 0.0, fixed_ms: float = 0.0
    ) -> None:
        self.num_slots = num_slots
        self.block_ms = block_ms
        self.fixed_ms = fixed_ms
        self._runner = runner
        self._host: dict[int, list[int | None]] = {}

    def ms(self, num_blocks: int) -> float:
        """As priced."""
        return self.fixed_ms + num_blocks * self.block_ms

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy. What is left behind may be somebody else's prefix still."""
        for copy in copies:
            assert 0 <= copy.slot < self.num_slots
            place = self._runner.block(copy.block_id)
            if copy.is_out:
                self._host[copy.slot] = list(self._runner.slots[place])
            else:
                self._runner.slots[place] = list(self._host[copy.slot])
