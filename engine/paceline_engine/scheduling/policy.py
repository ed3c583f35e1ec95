"""Who gives way, and when a request is done. Pure functions."""

from collections.abc import Collection, Iterable

from paceline_engine.core.request import Request
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import FinishReason, StepFeatures
from paceline_wire.limits import Limits
from paceline_wire.step_cost import chunk_attention

MAX_PREEMPTIONS = 3
"""A batch request preempted this often ranks as interactive, or it might never finish.

So does one that was overtaken so often that the other lane had to wait for it.
"""


def victim(running: Iterable[Request]) -> Request:
    """Pick the request to preempt: the batch lane first, in a lane the last that arrived.

    The oldest of the upper rank is never picked while another runs, so it always gets done.
    """
    return max(running, key=_expendability)


def yielding(running: Iterable[Request]) -> list[Request]:
    """List who must give way to an interactive arrival, the last that arrived first.

    Of the running requests of the batch lane, those that were not preempted too often.
    """
    lower = [request for request in running if _expendability(request)[0]]
    return sorted(lower, key=_expendability, reverse=True)


def rows_kept(limits: Limits) -> int:
    """Rows that the batch lane does not have to give up: its share of the batch size."""
    return int(limits.batch_share * limits.max_batch_size)


def recompute_ms(pacer: Pacer, num_tokens: int) -> float | None:
    """What computing so many tokens again adds to steps that run anyway; None without a model."""
    attention = int(chunk_attention(num_tokens, before=0))
    whole = pacer.predict_ms(StepFeatures(0, num_tokens, 0, attention))
    empty = pacer.predict_ms(StepFeatures(0, 0, 0, 0))
    return whole - empty if whole > 0 else None


def _expendability(request: Request) -> tuple[bool, int]:
    has_waited = request.is_aged or request.num_preemptions >= MAX_PREEMPTIONS
    return request.lane == "batch" and not has_waited, request.number


def finish_reason(
    request: Request, token: int, *, eos_token_ids: Collection[int], max_model_len: int
) -> FinishReason | None:
    """Decide whether the token just appended was the request's last."""
    sampling = request.sampling
    num_output = request.num_output_tokens
    if num_output >= sampling.min_tokens and (
        (token in eos_token_ids and not sampling.ignore_eos) or token in sampling.stop_token_ids
    ):
        return "stop"
    if num_output >= sampling.max_tokens or len(request.token_ids) >= max_model_len:
        return "length"
    return None
