"""A codec refuses by characters what no tokenizer could make short enough."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.job import Caller
from paceline_sidecar.openai.pooling_job import ScoresJob
from paceline_sidecar.openai.pooling_requests import ScoreRequest
from paceline_sidecar.text.codec import Codec
from paceline_testing.byte_tokenizer import START, write_tokenizer


class Counting:
    """A tokenizer that notes what it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.given: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        self.given.append(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture
def codec(tmp_path: Path) -> Codec:
    """Of a context of ten tokens."""
    write_tokenizer(tmp_path)
    codec = Codec.load(tmp_path).within(10)
    counting: Any = Counting(codec.tokenizer)
    return replace(codec, tokenizer=counting)


def _given(codec: Codec) -> list[str]:
    counting: Any = codec.tokenizer
    given: list[str] = counting.given
    return given


async def test_what_cannot_fit_is_not_tokenized(codec: Codec) -> None:
    """Even where every token were the longest of the vocabulary."""
    longest = len(START)

    assert len(await codec.encode_text(START * 10)) == 10
    with pytest.raises(InvalidRequest, match="do not fit into the model's context"):
        await codec.encode_text("x" * (longest * 10 + 1))
    with pytest.raises(InvalidRequest, match="do not fit into the model's context"):
        await codec.encode_chat([{"role": "user", "content": "x" * (longest * 10 + 1)}])

    assert _given(codec) == [START * 10]


async def test_a_text_that_is_scored_with_many_is_tokenized_once_by_itself(codec: Codec) -> None:
    """And once with each of the others."""
    body = ScoreRequest(model="m", text_1="ab", text_2=["c", "d", "e"])

    job = ScoresJob(body).job(Caller(arrived_at=0.0))
    await job.encode(codec)

    assert sorted(_given(codec)) == ["ab", "abc", "abd", "abe"]
