"""SentencePiece's BPE from the pieces and scores that a GGUF file carries.

SentencePiece joins, again and again, the two neighbours whose joint piece has the highest score.
That is BPE with a merge for every way to cut a piece in two, ordered by the score of the whole.
"""

from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.decoders import Decoder
from tokenizers.normalizers import Normalizer

from paceline_engine.checkpoint.gguf_config import GgufMetadata
from paceline_engine.errors import CorruptModel

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"


def build_sentence_piece(metadata: GgufMetadata) -> Tokenizer:
    """Build the tokenizer; bytes that no piece covers become the pieces of bytes."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores: list[float] = metadata["tokenizer.ggml.scores"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    if not len(tokens) == len(scores) == len(kinds):
        raise CorruptModel(
            "The GGUF file's tokenizer must have a score and a type for each token, got "
            f"{len(tokens)} tokens, {len(scores)} scores and {len(kinds)} types."
        )
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges(tokens, scores, kinds),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.normalizer = _normalizer(has_prefix=has_prefix)
    tokenizer.decoder = _decoder(has_prefix=has_prefix)
    _add_whole_pieces(tokenizer, tokens, kinds)
    return tokenizer


def _merges(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to join two normal pieces to a third, the highest score first."""
    normal = [index for index, kind in enumerate(kinds) if kind == _NORMAL]
    pieces = {tokens[index] for index in normal}
    by_score = sorted(normal, key=lambda index: -scores[index])
    return [cut for index in by_score for cut in _cuts(tokens[index], pieces)]


def _cuts(token: str, pieces: set[str]) -> Iterator[tuple[str, str]]:
    for at in range(1, len(token)):
        left, right = token[:at], token[at:]
        if left in pieces and right in pieces:
            yield left, right


def _normalizer(*, has_prefix: bool) -> Normalizer:
    """Spaces are a visible character; some models begin every text with one."""
    spaces = normalizers.Replace(" ", _SPACE)
    if not has_prefix:
        return spaces
    return normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])


def _decoder(*, has_prefix: bool) -> Decoder:
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _add_whole_pieces(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """Pieces that are matched whole in the text; the converter has written their spaces plainly."""
    special = [tokens[i] for i, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN)]
    defined = [tokens[i] for i, kind in enumerate(kinds) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
