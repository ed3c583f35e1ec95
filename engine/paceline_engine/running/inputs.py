"""From a batch to the arrays that a step computes with: once per step, on the host."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from paceline_engine.errors import RequestError
from paceline_engine.request import Request
from paceline_engine.scheduling.batch import Batch, Slice

Int32s: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_ON_ITS_WAY = 0


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step. T tokens of S sequences, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    token_ids: Int64s  # [T]
    positions: Int64s  # [T]
    slots: Int64s  # [T]: block * block_size + offset, where the token's k and v go
    block_table: Int32s  # [S, P], padded with block 0
    cu_seqlens: Int32s  # [S + 1]: the tokens of sequence s are [cu[s], cu[s + 1])
    context_lens: Int32s  # [S]: keys that its last token sees, itself included
    sample_rows: Int64s  # [R]: tokens whose logits are wanted
    sampled: tuple[Request, ...]  # [R]: whose they are
    ahead: tuple[int, ...] = ()  # [R]: guessed tokens before each, all 0 where empty
    keeps_every_state: bool = False
    """More of a prompt is asked for than the token that follows it, or adapters take part."""

    @property
    def kept_rows(self) -> Int64s | None:
        """Tokens whose final state is read; None for all."""
        is_all = self.keeps_every_state or len(self.sample_rows) == len(self.token_ids)
        return None if is_all else self.sample_rows


def prepare(batch: Batch, block_size: int, vocab_size: int) -> StepInputs:
    """Lay the slices out one after the other."""
    slices = batch.slices
    counts = np.array([piece.count for piece in slices], dtype=np.int64)
    starts = np.array([piece.start for piece in slices], dtype=np.int64)
    ends = counts.cumsum()

    token_ids = np.array(
        [
            token
            for piece in slices
            for token in (_with_draft(piece) if piece.draft else _known(piece))
        ],
        dtype=np.int64,
    )
    _require_known_tokens(batch, token_ids, ends, vocab_size)
    owners = np.repeat(np.arange(len(slices)), counts)
    positions = np.arange(len(token_ids)) - (ends - counts)[owners] + starts[owners]
    block_table = _block_table(batch, block_size)
    slots = block_table[owners, positions // block_size].astype(np.int64) * block_size
    samples = np.array([piece.samples for piece in slices], dtype=np.bool_)
    rows, sampled, ahead = (
        _drafted_rows(batch, ends)
        if batch.num_drafted
        else (ends[samples] - 1, tuple(piece.request for piece in slices if piece.samples), ())
    )
    return StepInputs(
        num_decodes=batch.num_decodes,
        token_ids=token_ids,
        positions=positions,
        slots=slots + positions % block_size,
        block_table=block_table,
        cu_seqlens=np.concatenate(([0], ends)).astype(np.int32),
        context_lens=(starts + counts).astype(np.int32),
        sample_rows=rows,
        sampled=sampled,
        ahead=ahead,
        keeps_every_state=any(map(_keeps_every_state, slices[batch.num_decodes :])),
    )


def _keeps_every_state(piece: Slice) -> bool:
    sampling = piece.request.sampling
    return sampling.prompt_logprobs is not None or sampling.pooling is not None


def _known(piece: Slice) -> list[int]:
    # A decode whose token is on its way: the launcher puts it in, on the device.
    return piece.request.token_ids[piece.start : piece.start + piece.count] or [_ON_ITS_WAY]


def _with_draft(piece: Slice) -> list[int]:
    return [*_known(piece), *piece.draft]


def _drafted_rows(
    batch: Batch, ends: Int64s
) -> tuple[Int64s, tuple[Request, ...], tuple[int, ...]]:
    """Every token of a draft samples, and the one before it."""
    rows, sampled, ahead = [], [], []
    for piece, end in zip(batch.slices, ends.tolist(), strict=True):
        if not piece.samples:
            continue
        for guessed in range(len(piece.draft) + 1):
            rows.append(end - 1 - len(piece.draft) + guessed)
            sampled.append(piece.request)
            ahead.append(guessed)
    return np.array(rows, dtype=np.int64), tuple(sampled), tuple(ahead)


def _block_table(batch: Batch, block_size: int) -> Int32s:
    held = [
        piece.request.block_ids[: -(-(piece.start + piece.count) // block_size)]
        for piece in batch.slices
    ]
    table = np.zeros((len(held), max(map(len, held))), dtype=np.int32)
    for row, blocks in zip(table, held, strict=True):
        row[: len(blocks)] = blocks
    return table


def _require_known_tokens(batch: Batch, token_ids: Int64s, ends: Int64s, vocab_size: int) -> None:
    """A token beyond the embedding would end the process, or read foreign memory."""
    if token_ids.min() >= 0 and token_ids.max() < vocab_size:
        return
    wrong = int(np.flatnonzero((token_ids < 0) | (token_ids >= vocab_size))[0])
    request = batch.slices[int(np.searchsorted(ends, wrong, side="right"))].request
    raise RequestError(
        request.id, f"token ids must be in [0, {vocab_size}), got {token_ids[wrong]}"
    )
