"""The tokens that one step may hold, and how they are shared among prompts."""

from paceline_wire.limits import Limits

MIN_CHUNK = 16
"""Smaller chunks of a long prompt cost more in overhead than they bring in fairness."""

MAX_UNFINISHED = 2
"""Prompts that a step may leave unfinished and still begin another that it cannot finish.

Prompts in progress share the tokens, so each one more delays the first token of all of them, and
a request that waits in the queue can still be refused in time.
"""

MANY_PROMPTS = 4
"""With more of them begun or waiting, prompts fill every step."""


def step_tokens(allowed: int, *, decodes: int, wants_prefill: bool, limits: Limits) -> int:
    """Bound what the pacer allowed: every decode runs, and prefill is never starved.

    The token budget may be below the decodes only while a lowered batch size drains.
    """
    floor = decodes + wants_prefill
    return max(min(max(allowed, floor), limits.token_budget), decodes)


def chunk(remaining: int, left: int) -> int:
    """Choose how many of a prompt's `remaining` tokens to compute when `left` may be spent.

    A prompt that cannot be finished takes half, so however many long prompts stand in front of
    a short one, it starts in the same step. What nobody needs is given to the first afterwards.
    """
    if remaining <= left:
        return remaining
    return max(left // 2, min(left, MIN_CHUNK))
