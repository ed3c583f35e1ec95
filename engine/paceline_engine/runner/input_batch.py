"""From a batch to a step's inputs: what the rows hold already is not said again.

A request owns one row from when it is admitted until it leaves. Beside the model lie, for each row,
its blocks, what its tokens are drawn by, and the token that was sampled last; the book knows how
far they are written. So a decode costs a place in a few arrays, and its blocks are looked at once
in `block_size` steps.
"""

from collections.abc import Sequence

import numpy as np

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.core.sampling_tensors import row_numbers
from paceline_engine.core.step_inputs import AT_ITS_ROW, Int64s, RowWrites, StepInputs
from paceline_engine.errors import RequestError

_NOBODY = -1
_NOWHERE = -1


class InputBatch:
    """Remembers what was written of each row. Every batch prepared is run, in order."""

    def __init__(
        self,
        num_rows: int,
        num_columns: int,
        block_size: int,
        vocab_size: int,
        *,
        salt: bytes | None,
        tokens_stay: bool = True,
    ) -> None:
        """`num_columns` are the blocks of the longest sequence.

        `salt`, random per engine run, makes the seeds of requests that bring none; None where the
        rows do not hold what tokens are drawn by: on a CPU, whose sampler asks the requests.

        `tokens_stay`: what is sampled is what a request goes on with, unless the host says so.
        """
        self._num_columns = num_columns
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._salt = salt
        self._tokens_stay = tokens_stay
        self._stays = np.full(num_rows, _NOBODY, dtype=np.int64)
        self._num_blocks = np.zeros(num_rows, dtype=np.int64)
        self._is_plain = np.zeros(num_rows, dtype=np.bool_)
        self._token_at = np.full(num_rows, _NOWHERE, dtype=np.int64)
        """Place in its sequence of the token that was sampled last."""
        self._stays_before: list[int] = []
        self._rows_before = np.empty(0, dtype=np.int64)

    def prepare(self, batch: Batch) -> StepInputs:
        """Lay the slices out one after the other, and note what the step writes.

        Raises `RequestError` for a token that the model does not know; then nothing is noted.
        """
        slices, num_decodes = batch.chunks, batch.num_decodes
        starts = np.array([piece.start for piece in slices], dtype=np.int64)
        bounds = _bounds(slices, num_decodes)
        ends = starts + bounds[1:] - bounds[:-1]
        stays = [piece.request.generation for piece in slices]
        if is_same := stays == self._stays_before:
            rows = self._rows_before
        else:
            rows = np.array([_row_of(piece.request) for piece in slices], dtype=np.int64)
        token_ids = self._token_ids(batch, rows, starts, stays, bounds, is_same=is_same)

        # From here on nothing can fail.
        self._stays_before, self._rows_before = stays, rows
        writes = self._writes(slices, rows, ends, None if is_same else stays)
        places, sampled, ahead = _sampling(batch, bounds)
        kept_at = None
        if not batch.num_drafted:  # else the host chooses which of the tokens holds
            is_all = len(sampled) == len(slices)
            samples = slice(None) if is_all else [piece.samples for piece in slices]
            kept_at = rows[samples]
            self._token_at[kept_at] = ends[samples]
        return StepInputs(
            num_decodes=num_decodes,
            rows=rows,
            starts=starts,
            bounds=bounds,
            token_ids=token_ids,
            writes=writes,
            sample_rows=places,
            sampled=sampled,
            kept_at=kept_at,
            rows_suffice=self._salt is not None and bool(self._is_plain[rows].all()),
            ahead=ahead,
            keeps_every_state=any(map(_keeps_every_state, slices[num_decodes:])),
        )

    def _token_ids(
        self,
        batch: Batch,
        rows: Int64s,
        starts: Int64s,
        stays: list[int],
        bounds: Int64s,
        *,
        is_same: bool,
    ) -> Int64s:  # [T]
        """Tokens that the host must bring; the others are at their rows."""
        decodes = batch.num_decodes
        token_ids = np.full(decodes, AT_ITS_ROW, dtype=np.int64)
        is_brought = self._token_at[rows[:decodes]] != starts[:decodes]
        if not is_same:
            is_brought |= self._stays[rows[:decodes]] != np.array(stays[:decodes], dtype=np.int64)
        if not self._tokens_stay:
            is_brought[:] = True
        for place in np.flatnonzero(is_brought).tolist():
            piece = batch.chunks[place]
            token_ids[place] = piece.request.token_ids[piece.start]
        others = [token for piece in batch.chunks[decodes:] for token in _known(piece)]
        if others:
            token_ids = np.concatenate((token_ids, np.array(others, dtype=np.int64)))
        self._require_known_tokens(batch, token_ids, bounds, is_brought)
        return token_ids

    def _require_known_tokens(
        self, batch: Batch, token_ids: Int64s, bounds: Int64s, is_brought: np.ndarray
    ) -> None:
        """A token beyond the embedding would end the process, or read foreign memory."""
        is_wrong = (token_ids < 0) | (token_ids >= self._vocab_size)
        is_wrong[: len(is_brought)] &= is_brought
        if not is_wrong.any():
            return
        wrong = int(np.flatnonzero(is_wrong)[0])
        request = batch.chunks[int(np.searchsorted(bounds[1:], wrong, side="right"))].request
        raise RequestError(
            request.id, f"token ids must be in [0, {self._vocab_size}), got {token_ids[wrong]}"
        )

    def _writes(
        self,
        slices: tuple[ScheduledChunk, ...],
        rows: Int64s,
        ends: Int64s,
        stays: list[int] | None,
    ) -> RowWrites:
        """Find the rows whose owner is new, or that have got blocks; `stays` if any may be new."""
        is_changed = -(-ends // self._block_size) > self._num_blocks[rows]
        if stays is not None:
            is_changed |= self._stays[rows] != np.array(stays, dtype=np.int64)
        written, columns, bounds = [], [], [0]
        numbers: list[int] = []

        def write(row: int, column: int, run: Sequence[int]) -> None:
            written.append(row)
            columns.append(column)
            numbers.extend(run)
            bounds.append(len(numbers))

        for place in np.flatnonzero(is_changed).tolist():
            request, row = slices[place].request, int(rows[place])
            if self._stays[row] != request.generation:
                self._stays[row] = request.generation
                self._num_blocks[row] = 0
                self._token_at[row] = _NOWHERE
                if self._salt is not None:
                    self._is_plain[row] = request.is_plain
                    write(row, self._num_columns, row_numbers(request, self._salt))
            column = int(self._num_blocks[row])
            more = request.block_ids[column : self._num_columns]
            if more:  # else a slice of padding beside the request's own
                self._num_blocks[row] += len(more)
                write(row, column, more)
        return RowWrites(_int64s(written), _int64s(columns), _int64s(bounds), _int64s(numbers))


def _row_of(request: Request) -> int:
    assert request.row is not None, request.id  # noqa: S101 - every running request holds one
    return request.row


def _bounds(slices: tuple[ScheduledChunk, ...], num_decodes: int) -> Int64s:  # [S + 1]
    """Where each slice's tokens begin and end; a decode has one."""
    bounds = np.arange(len(slices) + 1, dtype=np.int64)
    if num_decodes < len(slices):
        counts = _int64s([piece.count for piece in slices[num_decodes:]])
        bounds[num_decodes + 1 :] = num_decodes + counts.cumsum()
    return bounds


def _known(piece: ScheduledChunk) -> list[int]:
    num_known = piece.count - len(piece.draft)
    known = piece.request.token_ids[piece.start : piece.start + num_known]
    return [*known, *piece.draft] if piece.draft else known


def _sampling(batch: Batch, bounds: Int64s) -> tuple[Int64s, tuple[Request, ...], tuple[int, ...]]:
    """Which tokens sample, whose they are, and how many guesses lie before each."""
    if batch.num_drafted:
        return _drafted(batch, bounds)
    sampled = tuple([piece.request for piece in batch.chunks if piece.samples])
    if len(sampled) == len(batch.chunks):
        return bounds[1:] - 1, sampled, ()
    samples = np.array([piece.samples for piece in batch.chunks], dtype=np.bool_)
    return bounds[1:][samples] - 1, sampled, ()


def _drafted(batch: Batch, bounds: Int64s) -> tuple[Int64s, tuple[Request, ...], tuple[int, ...]]:
    """Every token of a draft samples, and the one before it."""
    places, sampled, ahead = [], [], []
    for piece, end in zip(batch.chunks, bounds[1:].tolist(), strict=True):
        if not piece.samples:
            continue
        for guessed in range(len(piece.draft) + 1):
            places.append(end - 1 - len(piece.draft) + guessed)
            sampled.append(piece.request)
            ahead.append(guessed)
    return _int64s(places), tuple(sampled), tuple(ahead)


def _keeps_every_state(piece: ScheduledChunk) -> bool:
    sampling = piece.request.sampling
    return sampling.prompt_logprobs is not None or sampling.pooling is not None


def _int64s(values: list[int]) -> Int64s:
    return np.array(values, dtype=np.int64)
