"""A token's text and bytes, for every kind of vocabulary."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from paceline_sidecar.text.token_text import TokenText, TokenTexts
from paceline_testing.byte_tokenizer import EOS, EOS_ID, VOCAB_SIZE, byte_tokenizer

TEXTS = TokenTexts(byte_tokenizer())


@given(st.text())
def test_the_bytes_of_the_tokens_are_the_texts(text: str) -> None:
    """Whatever a token cuts in two."""
    ids = byte_tokenizer().encode(text, add_special_tokens=False).ids

    assert b"".join(TEXTS.of(id_).data for id_ in ids if id_ < EOS_ID) == text.encode()


def test_special_and_unknown_tokens_have_a_text() -> None:
    """The one is its name, the other nothing: a vocabulary may be padded."""
    assert TEXTS.of(EOS_ID) == TokenText(EOS, EOS.encode())
    assert TEXTS.of(VOCAB_SIZE + 5) == TokenText("", b"")


def test_sentencepiece_vocabularies_write_spaces_and_bytes_their_own_way() -> None:
    """As Llama 2, Mistral and Gemma do."""
    vocab = {"<unk>": 0, "\u2581a": 1, "<0xC3>": 2, "<0xA9>": 3, "é": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])

    texts = TokenTexts(tokenizer)

    assert texts.of(1) == TokenText(" a", b" a")
    assert texts.of(2).data + texts.of(3).data == "é".encode()
    assert texts.of(2).text == "\ufffd"
    assert texts.of(4).data == "é".encode()
    assert texts.of(5).text == "<s>"
