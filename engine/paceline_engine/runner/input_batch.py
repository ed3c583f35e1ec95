"""The persistent batch: from a scheduled batch to a step's inputs, without what rows hold already.

A request owns one row from when it is admitted until it leaves. Beside the model lie, for each row,
its blocks, what its tokens are drawn by, and the token that was sampled last; the input batch knows
how far they are written. So a decode costs a place in a few arrays, and its blocks are looked at
once in `block_size` steps.
"""

from collections.abc import Sequence

import numpy as np

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.core.step_tensors import AT_ITS_ROW, Int64s, RowWrites, StepInputs, row_numbers
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

        `tokens_stay`: a request goes on with what is sampled for it, unless drafts are verified.
        """
        self.num_rows = num_rows
        self._num_columns = num_columns
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._salt = salt
        self._tokens_stay = tokens_stay
        self._generations = np.full(num_rows, _NOBODY, dtype=np.int64)
        self._num_blocks = np.zeros(num_rows, dtype=np.int64)
        self._is_plain = np.zeros(num_rows, dtype=np.bool_)
        self._token_at = np.full(num_rows, _NOWHERE, dtype=np.int64)
        """Place in its sequence of the token that was sampled last."""
        self._generations_before: list[int] = []
        self._rows_before = np.empty(0, dtype=np.int64)

    def prepare(self, batch: Batch) -> StepInputs:
        """Lay the chunks out one after the other, and note what the step writes.

        Raises `RequestError` for a token that the model does not know; then nothing is noted.
        """
        chunks, num_decodes = batch.chunks, batch.num_decodes
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        bounds = _bounds(chunks, num_decodes)
        ends = starts + bounds[1:] - bounds[:-1]
        generations = [chunk.request.generation for chunk in chunks]
        if is_same := generations == self._generations_before:
            rows = self._rows_before
        else:
            rows = np.array([_row_of(chunk.request) for chunk in chunks], dtype=np.int64)
        token_ids = self._token_ids(batch, rows, starts, generations, bounds, is_same=is_same)

        # From here on nothing can fail.
        self._generations_before, self._rows_before = generations, rows
        writes = self._writes(chunks, rows, ends, None if is_same else generations)
        places, sampled, ahead = _sampling(batch, bounds)
        is_plain = bool(self._is_plain[rows].all())
        reads_prompts = any(map(_reads_prompt, chunks[num_decodes:]))
        kept_at = None
        if batch.num_drafted:  # the host verifies the drafts and supplies the accepted tokens
            self._token_at[rows] = _NOWHERE
        else:
            is_all = len(sampled) == len(chunks)
            samples = slice(None) if is_all else [chunk.samples for chunk in chunks]
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
            is_plain=is_plain,
            rows_suffice=self._salt is not None and is_plain,
            ahead=ahead,
            reads_prompts=reads_prompts,
            keeps_every_state=reads_prompts,
        )

    def _token_ids(
        self,
        batch: Batch,
        rows: Int64s,
        starts: Int64s,
        generations: list[int],
        bounds: Int64s,
        *,
        is_same: bool,
    ) -> Int64s:  # [T]
        """Return the tokens that the host must bring; the others are at their rows."""
        decodes = batch.num_decodes
        token_ids = np.full(decodes, AT_ITS_ROW, dtype=np.int64)
        is_brought = self._token_at[rows[:decodes]] != starts[:decodes]
        if not is_same:
            is_brought |= self._generations[rows[:decodes]] != np.array(
                generations[:decodes], dtype=np.int64
            )
        if not self._tokens_stay:
            is_brought[:] = True
        for place in np.flatnonzero(is_brought).tolist():
            chunk = batch.chunks[place]
            token_ids[place] = chunk.request.token_ids[chunk.start]
        others = [token for chunk in batch.chunks[decodes:] for token in _known(chunk)]
        if others:
            token_ids = np.concatenate((token_ids, np.array(others, dtype=np.int64)))
        self._require_known_tokens(batch, token_ids, bounds, is_brought)
        return token_ids

    def _require_known_tokens(
        self, batch: Batch, token_ids: Int64s, bounds: Int64s, is_brought: np.ndarray
    ) -> None:
        """Raise for a token beyond the embedding: it would read foreign memory."""
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
        chunks: tuple[ScheduledChunk, ...],
        rows: Int64s,
        ends: Int64s,
        generations: list[int] | None,
    ) -> RowWrites:
        """Find the rows that have got blocks, or a new owner (none has without `generations`)."""
        is_changed = -(-ends // self._block_size) > self._num_blocks[rows]
        if generations is not None:
            is_changed |= self._generations[rows] != _int64s(generations)
        written, columns, bounds = [], [], [0]
        numbers: list[int] = []

        def write(row: int, column: int, run: Sequence[int]) -> None:
            written.append(row)
            columns.append(column)
            numbers.extend(run)
            bounds.append(len(numbers))

        for place in np.flatnonzero(is_changed).tolist():
            request, row = chunks[place].request, int(rows[place])
            if self._generations[row] != request.generation:
                self._generations[row] = request.generation
                self._num_blocks[row] = 0
                self._token_at[row] = _NOWHERE
                self._is_plain[row] = request.is_plain
                if self._salt is not None:
                    write(row, self._num_columns, row_numbers(request, self._salt))
            column = int(self._num_blocks[row])
            more = request.block_ids[column : self._num_columns]
            if more:  # else a chunk of padding beside the request's own
                self._num_blocks[row] += len(more)
                write(row, column, more)
        return RowWrites(_int64s(written), _int64s(columns), _int64s(bounds), _int64s(numbers))


def _row_of(request: Request) -> int:
    assert request.row is not None, request.id  # noqa: S101 - every running request holds one
    return request.row


def _bounds(chunks: tuple[ScheduledChunk, ...], num_decodes: int) -> Int64s:  # [S + 1]
    """Return where each chunk's tokens begin and end; a decode has one."""
    bounds = np.arange(len(chunks) + 1, dtype=np.int64)
    if num_decodes < len(chunks):
        counts = _int64s([chunk.count for chunk in chunks[num_decodes:]])
        bounds[num_decodes + 1 :] = num_decodes + counts.cumsum()
    return bounds


def _known(chunk: ScheduledChunk) -> list[int]:
    num_known = chunk.count - len(chunk.draft)
    known = chunk.request.token_ids[chunk.start : chunk.start + num_known]
    return [*known, *chunk.draft] if chunk.draft else known


def _sampling(batch: Batch, bounds: Int64s) -> tuple[Int64s, tuple[Request, ...], tuple[int, ...]]:
    """Return which tokens sample, their requests, and how many draft tokens lie before each."""
    if batch.num_drafted:
        return _drafted(batch, bounds)
    sampled = tuple([chunk.request for chunk in batch.chunks if chunk.samples])
    if len(sampled) == len(batch.chunks):
        return bounds[1:] - 1, sampled, ()
    samples = np.array([chunk.samples for chunk in batch.chunks], dtype=np.bool_)
    return bounds[1:][samples] - 1, sampled, ()


def _drafted(batch: Batch, bounds: Int64s) -> tuple[Int64s, tuple[Request, ...], tuple[int, ...]]:
    """The same where there are drafts: all of a draft's tokens sample, and the one before it."""
    places, sampled, ahead = [], [], []
    for chunk, end in zip(batch.chunks, bounds[1:].tolist(), strict=True):
        if not chunk.samples:
            continue
        for draft_tokens in range(len(chunk.draft) + 1):
            places.append(end - 1 - len(chunk.draft) + draft_tokens)
            sampled.append(chunk.request)
            ahead.append(draft_tokens)
    return _int64s(places), tuple(sampled), tuple(ahead)


def _reads_prompt(chunk: ScheduledChunk) -> bool:
    sampling = chunk.request.sampling
    return sampling.prompt_logprobs is not None or sampling.pooling is not None


def _int64s(values: list[int]) -> Int64s:
    return np.array(values, dtype=np.int64)
