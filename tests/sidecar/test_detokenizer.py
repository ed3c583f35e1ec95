"""Incremental decoding shows whole characters only."""

from hypothesis import given
from hypothesis import strategies as st

from paceline_sidecar.text.codec import Detokenizer
from paceline_testing.byte_tokenizer import EOS_ID, byte_tokenizer

TOKENIZER = byte_tokenizer()


@given(st.text(max_size=30))
def test_pieces_add_up_to_the_text(text: str) -> None:
    """One token at a time, each a single byte."""
    token_ids = TOKENIZER.encode(text).ids
    detokenizer = Detokenizer(TOKENIZER, TOKENIZER.encode("a prompt").ids)

    pieces = [detokenizer.push([token_id]) for token_id in token_ids]

    assert "".join(pieces) == TOKENIZER.decode(token_ids)


def test_half_a_character_waits_for_its_other_half() -> None:
    """A client never sees a replacement character."""
    first, second = TOKENIZER.encode("é").ids
    detokenizer = Detokenizer(TOKENIZER, [])

    assert detokenizer.push([first]) == ""
    assert detokenizer.push([second]) == "é"


def test_special_tokens_are_not_text() -> None:
    """The end of a sequence is a token, not a word."""
    assert Detokenizer(TOKENIZER, []).push([*TOKENIZER.encode("ab").ids, EOS_ID]) == "ab"
