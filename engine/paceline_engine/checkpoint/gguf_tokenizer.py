"""A `tokenizer.json` from the vocabulary and merges that a GGUF file carries.

Two kinds are built. Byte-level BPE, 'gpt2': the file names how text is split before the merges
apply (`tokenizer.ggml.pre`), and each name stands for one expression. SentencePiece's BPE, 'llama'
(`sentence_piece.py`).
"""

from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.pre_tokenizers import PreTokenizer

from paceline_engine.checkpoint.gguf_config import GgufMetadata
from paceline_engine.checkpoint.sentence_piece import build_sentence_piece
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.errors import UnsupportedModel

_CONTROL, _USER_DEFINED = 3, 4

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def build_tokenizer(metadata: GgufMetadata) -> TokenizerFiles:
    """Build the tokenizer that the model was trained with."""
    kind = metadata["tokenizer.ggml.model"]
    if kind not in _BUILDERS:
        raise UnsupportedModel(
            f"The GGUF file's tokenizer is {kind!r}; the engine builds {', '.join(_BUILDERS)}."
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    tokenizer = _BUILDERS[kind](metadata)
    bos, eos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]}:0 $A:0", special_tokens=[(tokens[bos], bos)]
        )
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_template=metadata.get("tokenizer.chat_template"),
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
    )


def _build_byte_level(metadata: GgufMetadata) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    tokenizer = _byte_level_bpe(tokens, metadata["tokenizer.ggml.merges"])
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    _add_whole_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type") or [])
    return tokenizer


_BUILDERS = {"gpt2": _build_byte_level, "llama": build_sentence_piece}


def _byte_level_bpe(tokens: list[str], merges: list[str]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # A merge is two parts with one space between; a part never holds a space (it is written Ġ).
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    """Every digit by itself, then as GPT-2."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(expression: str) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(expression), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "qwen2": _split(_QWEN2),
    "deepseek-r1-qwen": _split(_QWEN2),
    "llama3": _split(_LLAMA3),
    "llama-v3": _split(_LLAMA3),
    "llama-bpe": _split(_LLAMA3),
}


def _pre_tokenizer(name: str) -> PreTokenizer:
    if name not in _PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"The GGUF file splits text as {name!r}; the engine knows {', '.join(_PRE_TOKENIZERS)}."
        )
    return _PRE_TOKENIZERS[name]()


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tokens that are matched whole in the text and never cut into pieces."""
    typed = list(zip(tokens, types, strict=False))
    control = [token for token, kind in typed if kind == _CONTROL]
    defined = [token for token, kind in typed if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
