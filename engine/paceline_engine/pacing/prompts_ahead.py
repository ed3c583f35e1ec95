"""What the prompts of a step cost in attention, before the scheduler has shared the step's tokens.

A prompt's token attends to all tokens before it, those that the prefix cache held included: the
same chunk costs several times as much deep in a prompt as at its start.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline_engine.pacing.pacer import Prompt

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]


def shared_attention(prompts: "Sequence[Prompt] | Whole", count: int, tokens: int) -> float:
    """Return the query-key pairs of `tokens` shared among the first `count` prompts.

    They are shared as the scheduler does, its lanes aside: a prompt that cannot be finished takes
    half of what is left, and what nobody needs goes to the first of those. What is left without a
    prompt attends to itself alone. Numba compiles it too, with `prompts` as an array [count, 2].
    """
    pairs, left = 0.0, tokens
    first_rest, first_before = 0, 0
    for place in range(count):
        remaining, before = prompts[place][0], prompts[place][1]
        if left <= 0:
            break
        chunk = remaining if remaining <= left else (left + 1) // 2
        pairs += chunk * (before + chunk / 2)
        left -= chunk
        if first_rest == 0 and chunk < remaining:
            first_rest, first_before = remaining - chunk, before + chunk
    more = min(left, first_rest)
    return pairs + more * (first_before + more / 2) + (left - more) ** 2 / 2
