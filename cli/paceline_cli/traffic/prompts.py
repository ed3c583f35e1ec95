"""What prompts say: excerpts of a corpus, some behind a shared beginning."""

from dataclasses import dataclass
from random import Random

CHARS_PER_TOKEN = 4
"""About so many in English text, for the tokenizers that we serve."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Beginnings that prompts share, as system prompts are shared."""

    tokens: int
    groups: int = 1
    """Different beginnings; each request draws one."""


def excerpt(corpus: str, tokens: int, random: Random) -> str:
    """A piece of `corpus` of about `tokens` tokens, from a random place, whole words only."""
    length = tokens * CHARS_PER_TOKEN
    if length >= len(corpus):
        raise ValueError(f"a prompt of {tokens} tokens needs a corpus of more than {length} chars")
    start = random.randrange(len(corpus) - length)
    words = corpus[start : start + length].split()
    return " ".join(words[1:-1] or words)


def long_excerpt(corpus: str, tokens: int, random: Random) -> str:
    """The same of any length: several excerpts where the corpus is shorter."""
    whole = (len(corpus) - 1) // CHARS_PER_TOKEN
    pieces = [excerpt(corpus, min(whole, tokens), random)]
    while (tokens := tokens - whole) > 0:
        pieces.append(excerpt(corpus, min(whole, tokens), random))
    return " ".join(pieces)


def beginnings(corpus: str, shared: SharedPrefix) -> tuple[str, ...]:
    """The shared beginnings, the same whatever the seed of the traffic: a second run shares too."""
    random = Random(shared.tokens)  # noqa: S311 - a load, not a secret
    return tuple(long_excerpt(corpus, shared.tokens, random) for _ in range(shared.groups))
