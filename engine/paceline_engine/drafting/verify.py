"""Which guesses hold: a guessed token is kept where the model chose that very token.

The model's choice at each place is what it would have been without a draft: greedy, or drawn with
the request's own number for that place. So the output is the same token for token, and its
distribution that of the model (for a guess that is certain, this is the rule of Leviathan et al.,
2023: it is kept with the probability that the model gives it).
"""

from collections.abc import Sequence


def verify(draft: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
    """The tokens that follow: guesses that hold, and what the model chose after them.

    `chosen[i]` is the model's choice after the first `i` guesses; one more than the guesses.
    """
    count = 0
    while count < len(draft) and draft[count] == chosen[count]:
        count += 1
    return tuple(chosen[: count + 1])
