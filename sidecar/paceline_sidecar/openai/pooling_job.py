"""Embeddings and scores: from the request to its job, from what was computed to the response."""

import base64
import struct
import time
import uuid
from typing import Literal

import msgspec

from paceline_sidecar.errors import EngineFault, InvalidRequest
from paceline_sidecar.openai.job import Caller, Encode, encoder, estimate
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest, ScoreRequest
from paceline_sidecar.openai.responses import GatheredChoice, Usage, usage_of
from paceline_sidecar.submit import Job
from paceline_sidecar.text.codec import Codec
from paceline_wire import Pooling, Sampling

_FLOAT_BYTES = 4


class Embedding(msgspec.Struct, frozen=True):
    """One input's embedding, as numbers or as base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class Score(msgspec.Struct, frozen=True):
    """One pair's score."""

    index: int
    score: float
    """Sum over the tokens of `text_2` of the logarithm of their probability after `text_1`."""
    num_tokens: int
    """Tokens of `text_2`: `score / num_tokens` is comparable between texts of different lengths."""
    object: Literal["score"] = "score"


class Numbers(msgspec.Struct, frozen=True):
    """What both responses have."""

    id: str
    created: int
    model: str
    usage: Usage
    object: Literal["list"] = "list"


class Embeddings(Numbers, frozen=True, kw_only=True):
    """The response of `/v1/embeddings`."""

    data: list[Embedding]


class Scores(Numbers, frozen=True, kw_only=True):
    """The response of `/v1/score`."""

    data: list[Score]


class EmbeddingsJob:
    """Makes the job and the response of one request for embeddings."""

    def __init__(self, body: EmbeddingsRequest, pooling: Pooling) -> None:
        self._body = body
        self._pooling: Pooling = pooling

    def job(self, caller: Caller) -> Job:
        """Compute every input once; the token that would follow is not shown."""
        prompts = self._body.prompts
        sampling = Sampling(max_tokens=1, temperature=0.0, pooling=self._pooling)
        estimates = [estimate(prompt) for prompt in prompts]
        return _job(sampling, caller, estimates, encoder(prompts), items_param="input")

    def answer(self, model: str, choices: list[GatheredChoice]) -> Embeddings:
        """Return every embedding, in the order of the inputs."""
        data = [
            Embedding(index, self._written(choice.generation.embedding))
            for index, choice in enumerate(choices)
        ]
        return Embeddings(*_head("embd", model, choices), data=data)

    def _written(self, embedding: bytes) -> list[float] | str:
        if not embedding:
            raise EngineFault("The engine computes no embeddings.")
        if self._body.encoding_format == "base64":
            return base64.b64encode(embedding).decode()
        return list(struct.unpack(f"<{len(embedding) // _FLOAT_BYTES}f", embedding))


class ScoresJob:
    """Makes the job and the response of one request for scores."""

    def __init__(self, body: ScoreRequest) -> None:
        self._pairs = body.pairs
        self._starts: list[int] = []
        """Tokens of each pair's first text."""

    def job(self, caller: Caller) -> Job:
        """Compute every pair as one text, with the logprobs of its tokens."""
        sampling = Sampling(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        estimates = [estimate(first + second) for first, second in self._pairs]
        return _job(sampling, caller, estimates, self._encode, items_param="text_2")

    async def _encode(self, codec: Codec) -> list[list[int]]:
        """Tokenize each pair as one text, and note where its second text begins."""
        prompts = []
        starts: dict[str, int] = {}
        for first, second in self._pairs:
            if first not in starts:
                starts[first] = len(await codec.encode_text(first))
            prompt = await codec.encode_text(first + second)
            if starts[first] == 0 or len(prompt) <= starts[first]:
                message = "text_2 adds no token to text_1"
                raise InvalidRequest(message, param="text_2")
            self._starts.append(starts[first])
            prompts.append(prompt)
        return prompts

    def answer(self, model: str, choices: list[GatheredChoice]) -> Scores:
        """Return every score, in the order of the pairs."""
        data = []
        for index, (start, choice) in enumerate(zip(self._starts, choices, strict=True)):
            scored = choice.generation.prompt_scores[start:]
            logprobs = [each.logprob for each in scored if each.logprob is not None]
            data.append(Score(index, sum(logprobs), len(logprobs)))
        return Scores(*_head("score", model, choices), data=data)


def _job(
    sampling: Sampling, caller: Caller, estimates: list[int], encode: Encode, *, items_param: str
) -> Job:
    return Job(
        sampling=sampling,
        stops=(),
        estimates=estimates,
        encode=encode,
        items_param=items_param,
        shows_output=False,
        lane=caller.lane,
        arrived_at=caller.arrived_at,
        timeout_s=caller.timeout_s,
        principal=caller.principal,
        cache_salt=caller.cache_salt,
        adapter=caller.adapter,
        trace=caller.trace,
    )


def _head(kind: str, model: str, choices: list[GatheredChoice]) -> tuple[str, int, str, Usage]:
    usage = usage_of([choice.generation for choice in choices])
    return f"{kind}-{uuid.uuid4().hex}", int(time.time()), model, usage
