"""The counters of a step on its way: moved when it is launched, and back if nothing comes of it.

So the next step can be chosen before this one has given its tokens: what is computed is known, only
which token follows is not. A request's `num_in_flight` tokens are those still to come.
"""

from paceline_engine.core.batch import Batch
from paceline_engine.core.request import Request, State
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.scheduling.rows import Rows
from paceline_engine.scheduling.waiting import WaitingLane
from paceline_wire.limits import Limits


def advance(batch: Batch, rows: Rows) -> None:
    """Count a launched step's tokens as computed; a prompt that it completes decodes from now."""
    for piece in batch.chunks:
        if piece.is_padding:
            continue
        request = piece.request
        request.num_computed += piece.count
        if piece.samples:
            request.num_in_flight += 1
            if not piece.is_decode:
                rows.begin_decode(request)


def take_back(batch: Batch, rows: Rows) -> None:
    """Undo `advance`, the newest step first: its requests are run again as if it had not been."""
    for piece in batch.chunks:
        request = piece.request
        if piece.is_padding or request.state is not State.RUNNING:
            continue
        request.num_computed = piece.start
        if piece.samples:
            request.num_in_flight -= 1
            if not piece.is_decode:
                rows.resume_prefill(request)


def wants_more(request: Request, max_model_len: int) -> bool:
    """Whether a decode goes on after the token in flight, as far as that is known without it."""
    coming = request.num_in_flight
    return (
        request.num_output_tokens + coming < request.sampling.max_tokens
        and len(request.token_ids) + coming < max_model_len
    )


def must_wait_for_tokens(rows: Rows) -> bool:
    """Whether the host must know a token in flight to choose what follows: grammars."""
    return any(request.constraint is not None for request in rows.decoding.values())


def may_displace(rows: Rows, waiting: WaitingLane, blocks: BlockLedger, limits: Limits) -> bool:
    """Whether `waiting` interactive requests may take a row or blocks from the batch lane."""
    arriving = len(waiting)
    if not arriving or not rows.by_lane["batch"]:
        return False
    held = len(rows) + arriving
    # With their last blocks partly filled, and the one that each running request may need next.
    most = blocks.most_for(waiting.num_tokens) + arriving + held
    return held > limits.max_batch_size or blocks.pool.num_free < most


def may_preempt(rows: Rows, blocks: BlockLedger) -> bool:
    """Whether some decode may find no block for its next token."""
    num_free = blocks.pool.num_free
    if num_free >= len(rows.decoding):  # enough whoever is full: seldom worth a count
        return False
    return num_free < sum(map(blocks.is_full, rows.decoding.values()))
