"""A model without weights: its next token depends on the whole sequence, read from its blocks."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.flight import Next
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

    def run(self, batch: Batch) -> list[Next]:
        """Write every slice, then read the whole context of those that sample."""
        self.before_run(batch)
        self._check_rows(batch)
        for piece in batch.chunks:
            self._write(piece)
        return [self._sample(piece) if piece.samples else None for piece in batch.chunks]

    @property
    def block_size(self) -> int:
        """Slots of one block."""
        return self._capacity.block_size

    def block(self, block_id: int) -> slice:
        """Where a block's slots are."""
        size = self._capacity.block_size
        return slice(block_id * size, (block_id + 1) * size)

    def _write(self, piece: ScheduledChunk) -> None:
        token_ids = (*piece.request.token_ids, *piece.draft)
        for position in range(piece.start, piece.start + piece.count):
            self.slots[self._slot(piece, position)] = token_ids[position]

    def _sample(self, piece: ScheduledChunk) -> Next:
        end = piece.start + piece.count
        read = [self.slots[self._slot(piece, position)] for position in range(end)]
        known = [token for token in read if token is not None]
        token_ids = [*piece.request.token_ids, *piece.draft]
        assert known == token_ids[:end], f"{piece.request.id} lost its context"
        if not piece.draft:
            return self.choose(known)
        first = end - len(piece.draft)
        return verify(piece.draft, [self.choose(known[:i]) for i in range(first, end + 1)])

    def choose(self, known: list[int]) -> int:
        """The token that follows."""
        self.before_choice(known)
        return next_token(known, self.vocab_size)

    def _slot(self, piece: ScheduledChunk, position: int) -> int:
        size = self._capacity.block_size
        return piece.request.block_ids[position // size] * size + position % size

    def _check_rows(self, batch: Batch) -> None:
        rows: Collection[int | None] = [
            piece.request.row for piece in batch.chunks if not piece.is_padding
        ]
        assert None not in rows, "a request without a row runs"
        assert len(set(rows)) == len(rows), f"two requests share a row: {rows}"
        assert max((row for row in rows if row is not None), default=0) < (
            self._capacity.max_batch_size
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """A slice as it was when its step was launched."""

    row: int
    token_ids: list[int]
    """As far as the host knew them."""
    start: int
    end: int
    block_ids: list[int]
    samples: bool


class FakeLauncher:
    """Runs steps as late as a `Launcher` may: when their tokens are asked for, in their order.

    Till then it keeps of a request only what a launch copies to a device, and the token that the
    step before samples only by row, as a device does.
    """

    def __init__(self, runner: FakeRunner, num_rows: int) -> None:
        self._runner = runner
        self._latest: list[int | None] = [None] * num_rows
        self._queue: list[FakeFlight] = []

    def launch(self, batch: Batch) -> "FakeFlight":
        """Note what the step needs."""
        if batch.num_drafted or batch.num_padding:
            return self._run_now(batch)
        self._runner.before_run(batch)
        self._runner._check_rows(batch)
        flight = FakeFlight(self, [_row(piece) for piece in batch.chunks])
        self._queue.append(flight)
        return flight

    def _run_now(self, batch: Batch) -> "FakeFlight":
        """Nothing is on its way beside drafts and padding."""
        assert not self._queue
        return FakeFlight(self, [], self._runner.run(batch))

    def run_until(self, last: "FakeFlight") -> list[Next]:
        """Run what was launched, in order; what a step that nobody asked for gives is lost."""
        while True:
            flight = self._queue.pop(0)
            tokens = [self._run(row) for row in flight.rows]
            if flight is last:
                return tokens

    def _run(self, row: _Row) -> Next:
        runner, size = self._runner, self._runner.block_size
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
class FakeFlight:
    """One step of a `FakeLauncher`."""

    launcher: FakeLauncher
    rows: list[_Row]
    done: list[Next] | None = None

    def tokens(self) -> list[Next]:
        """Run it, after those before it."""
        return self.done if self.done is not None else self.launcher.run_until(self)


def _row(piece: ScheduledChunk) -> _Row:
    request = piece.request
    assert request.row is not None
    end = piece.start + piece.count
    assert end <= len(request.token_ids) + 1, "the token before the last is not known either"
    return _Row(
        request.row,
        list(request.token_ids),
        piece.start,
        end,
        list(request.block_ids),
        piece.samples,
    )


class FakeSwapper:
    """Host memory beside a `FakeRunner`'s slots, at a price that a test says."""

    def __init__(self, runner: FakeRunner, num_slots: int, block_ms: float = 0.0) -> None:
        self.num_slots = num_slots
        self.block_ms = block_ms
        self._runner = runner
        self._host: dict[int, list[int | None]] = {}

    def ms(self, num_blocks: int) -> float:
        """As priced."""
        return num_blocks * self.block_ms

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy. What is left behind may be somebody else's prefix still."""
        for copy in copies:
            assert 0 <= copy.slot < self.num_slots
            place = self._runner.block(copy.block_id)
            if copy.is_out:
                self._host[copy.slot] = list(self._runner.slots[place])
            else:
                self._runner.slots[place] = list(self._host[copy.slot])
