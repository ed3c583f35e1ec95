"""Log-probabilities in the three shapes that clients know."""

from collections.abc import Sequence

import msgspec

from paceline_sidecar.generation import TokenScore


class TextLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a completion: four lists, one entry per token."""

    text_offset: list[int]
    """Where the token begins in the choice's text, in characters."""
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens and the sampled one; null for the first token of a prompt."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One token that might have been sampled."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of a chat completion."""

    content: list[ChatLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """One token of a prompt, or one that the model found likely in its place; vLLM's shape."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]


def text_logprobs(scores: Sequence[TokenScore], *, offset: int) -> TextLogprobs:
    """Return the logprobs of a completion's tokens, the first of which begins at `offset`."""
    offsets = []
    for score in scores:
        offsets.append(offset)
        offset += len(score.token.text)
    return TextLogprobs(
        text_offset=offsets,
        token_logprobs=[score.logprob for score in scores],
        tokens=[score.token.text for score in scores],
        top_logprobs=[_alternatives(score) for score in scores],
    )


def chat_logprobs(scores: Sequence[TokenScore]) -> ChatLogprobs:
    """Return the logprobs of a chat's tokens."""
    return ChatLogprobs(
        [
            ChatLogprob(
                score.token.text,
                score.logprob,
                list(score.token.data),
                [TopLogprob(each.text, logprob, list(each.data)) for _, each, logprob in score.top],
            )
            for score in scores
            if score.logprob is not None
        ]
    )


def prompt_logprobs(scores: Sequence[TokenScore]) -> PromptLogprobs | None:
    """Return the logprobs of a prompt's tokens; None where nobody asked."""
    return [_ranked(score) for score in scores] or None


def _alternatives(score: TokenScore) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    # Tokens that read alike share a key: the likelier of them, which comes first, keeps it.
    top: dict[str, float] = {}
    for _, token, logprob in score.top:
        top.setdefault(token.text, logprob)
    top.setdefault(score.token.text, score.logprob)
    return top


def _ranked(score: TokenScore) -> dict[int, PromptLogprob] | None:
    if score.logprob is None:
        return None
    ranked = {score.id: PromptLogprob(score.logprob, score.rank, score.token.text)}
    for place, (id_, token, logprob) in enumerate(score.top):
        ranked.setdefault(id_, PromptLogprob(logprob, place + 1, token.text))
    return ranked
