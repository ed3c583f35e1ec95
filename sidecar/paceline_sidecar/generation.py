"""One choice of a request while it is generated: tokens in, text out, and the times measured."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from paceline_sidecar.errors import EngineFault, InvalidRequest, TimedOut
from paceline_sidecar.keys import ANYONE, Principal
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.text.codec import TAIL_TOKENS, Codec, Detokenizer
from paceline_sidecar.text.stop import StopMatcher
from paceline_sidecar.text.token_text import TokenText
from paceline_wire import Output, Submit, TokenLogprobs
from paceline_wire.limits import Lane

FinishReason = Literal["stop", "length"]
_GIVEN_UP = ("error", "abort")


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The logprobs of one token, as text."""

    token: TokenText
    logprob: float | None = None
    """None for the first token of a prompt: nothing comes before it."""
    rank: int = 0
    id: int = 0
    top: tuple[tuple[int, TokenText, float], ...] = ()
    """Id, text and log-probability of the likeliest tokens, best first."""


class Delta(msgspec.Struct, frozen=True):
    """What one output adds to the answer; made for each, in a fifth of a dataclass's time."""

    text: str
    finish: FinishReason | None = None
    cut: bool = False
    """A stop string ended it: the engine does not know yet."""
    scores: tuple[TokenScore, ...] = ()
    """Logprobs of its tokens, where asked for; of a stop string's too, whose text is not shown."""

    @property
    def is_text_alone(self) -> bool:
        """Return whether it is a piece of text with nothing else to say."""
        return bool(self.text) and self.finish is None and not self.scores


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """How a choice is shown."""

    echo: str | None = None
    """The prompt's text, shown before the output."""
    shows_output: bool = True
    """False: the prompt is all that is shown."""
    index: int = 0
    """The place among the choices of one prompt; the first, 0, alone counts the prompt."""
    num_choices: int = 1
    grammar_param: str = ""
    """The field of the request that the grammar came from."""
    shows_special_tokens: bool = False


class Generation:
    """Turns the engine's outputs into deltas; counts the tokens and measures their times."""

    def __init__(
        self,
        submit: Submit,
        *,
        codec: Codec,
        stops: tuple[str, ...],
        eos_token_ids: frozenset[int],
        ledger: Ledger,
        shape: ChoiceShape = ChoiceShape(),
        principal: Principal = ANYONE,
    ) -> None:
        self.submit = submit
        """What the engine is told. The prompt is dropped once the engine has it."""
        self.num_prompt_tokens = len(submit.prompt_ids)
        self.prompt_tail = submit.prompt_ids[-TAIL_TOKENS:]
        """The prompt's last tokens."""
        self.shape = shape
        self.lane: Lane = submit.lane
        self.prompt_scores: tuple[TokenScore, ...] = ()
        """Logprobs of the prompt's tokens, where asked for, once the first output has come."""
        self.embedding = b""
        """The prompt's embedding, where asked for, once the first output has come."""
        self._first_prompt_id = submit.prompt_ids[0]
        self._principal = principal
        self._texts = codec.token_texts
        self._detokenizer = Detokenizer(
            codec.tokenizer,
            submit.prompt_ids,
            skip_special_tokens=not shape.shows_special_tokens,
        )
        self._matcher = StopMatcher(stops) if stops else None
        more_ids = submit.sampling.stop_token_ids
        self._hidden_ids = eos_token_ids.union(more_ids) if more_ids else eos_token_ids
        self._ledger = ledger
        self._min_tokens = submit.sampling.min_tokens
        asked = (submit.sampling.logprobs, submit.sampling.prompt_logprobs, submit.sampling.pooling)
        self._is_plain = asked == (None, None, None) and shape.echo is None and shape.shows_output
        """Whether each output is just text: no logprobs, pooling or echo was asked for."""
        self._scheduled_at: float | None = None
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._longest_gap_ms = 0.0
        self._gaps = 0
        self._slow_gaps = 0
        self.finish: FinishReason | None = None
        self.output_tokens = 0
        self.cached_tokens = 0

    @property
    def counted_prompt_tokens(self) -> int:
        """Return the prompt's tokens, or 0 after its first choice: a prompt counts once."""
        return self.num_prompt_tokens if self.shape.index == 0 else 0

    @property
    def shown_tokens(self) -> int:
        """Return the output tokens that the answer holds."""
        return self.output_tokens if self.shape.shows_output else 0

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended it."""
        return None if self._matcher is None else self._matcher.met

    @property
    def started(self) -> bool:
        """Return whether its first token has come."""
        return self._first_at is not None

    def forget_prompt(self) -> None:
        """Let go of the prompt's tokens: the engine has them now, and there may be many."""
        self.submit = msgspec.structs.replace(self.submit, prompt_ids=[])

    def feed(self, output: Output, at: float) -> Delta:
        """Take one output; raise the client's error where the engine gave the request up."""
        if output.finish in _GIVEN_UP:
            raise self._fault(output)
        opens = self._first_at is None
        self._measure(output, at)
        text, cut = self._read(output)
        if self._is_plain and not cut and output.finish is None:
            return Delta(text)  # nearly every token of nearly every request
        if cut:
            self.finish = "stop"
        elif output.finish is not None:
            self.finish = "stop" if output.finish == "stop" else "length"
            text += "" if self._matcher is None else self._matcher.flush()
        return self._shown(output, text, cut=cut, opens=opens)

    def _shown(self, output: Output, text: str, *, cut: bool, opens: bool) -> Delta:
        self.embedding = self.embedding or output.embedding
        if output.prompt_logprobs:
            self.prompt_scores = self._score_prompt(output.prompt_logprobs)
        scores = tuple(map(self._score, output.logprobs))
        if not self.shape.shows_output:
            text, scores = "", ()
        if self.shape.echo is not None and opens:
            text = self.shape.echo + text
            # Asked for log-probabilities, an echoed prompt has its own.
            scores = (*self.prompt_scores, *scores) if self._has_logprobs else scores
        return Delta(text, self.finish, cut, scores)

    def record(
        self, outcome: Outcome, *, now: float, epoch: int, longest_choice: int | None = None
    ) -> FinishedRequest:
        """Return its record as of an end at `now`."""
        arrived_at = self.submit.arrived_at
        tpot_ms = None
        if self._first_at is not None and self._last_at is not None and self.output_tokens > 1:
            tpot_ms = (self._last_at - self._first_at) * 1e3 / (self.output_tokens - 1)
        return FinishedRequest(
            lane=self.lane,
            arrived_at=arrived_at,
            finished_at=now,
            outcome=outcome,
            queue_ms=_milliseconds(arrived_at, self._scheduled_at),
            ttft_ms=_milliseconds(arrived_at, self._first_at),
            tpot_ms=tpot_ms,
            itl_max_ms=self._longest_gap_ms if self._gaps else None,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            epoch=epoch,
            slow_gaps=self._slow_gaps / self._gaps if self._gaps else 0.0,
            prefill_ms=_milliseconds(self._scheduled_at, self._first_at),
            finish_reason=self.finish,
            max_tokens=self.submit.sampling.max_tokens,
            longest_choice=longest_choice,
            num_choices=self.shape.num_choices if self.shape.index == 0 else 0,
            principal=self._principal,
        )

    def _fault(self, output: Output) -> TimedOut | InvalidRequest | EngineFault:
        if output.error == "deadline":
            return TimedOut("The request's deadline passed before it was done.")
        if output.is_invalid:
            param = self.shape.grammar_param or None
            where = f"{param}: " if param else ""
            return InvalidRequest(f"{where}{output.error}", param=param)
        return EngineFault(f"The engine gave this request up: {output.error or output.finish}.")

    @property
    def _has_logprobs(self) -> bool:
        return self.submit.sampling.logprobs is not None

    def _score_prompt(self, told: list[TokenLogprobs]) -> tuple[TokenScore, ...]:
        first = self._first_prompt_id
        return TokenScore(self._texts.of(first), id=first), *map(self._score, told)

    def _score(self, told: TokenLogprobs) -> TokenScore:
        pairs = zip(told.top_ids, told.top_logprobs, strict=True)
        return TokenScore(
            self._texts.of(told.token_id),
            _finite(told.logprob),
            told.rank,
            told.token_id,
            tuple((id_, self._texts.of(id_), _finite(logprob)) for id_, logprob in pairs),
        )

    def _read(self, output: Output) -> tuple[str, bool]:
        token_ids = output.token_ids
        if output.finish == "stop" and token_ids and token_ids[-1] in self._hidden_ids:
            token_ids = token_ids[:-1]
        text = self._detokenizer.push(token_ids)
        if self._matcher is None or self.output_tokens <= self._min_tokens:
            return text, False
        return self._matcher.push(text)

    def _measure(self, output: Output, at: float) -> None:
        if self._first_at is None:
            self._scheduled_at = output.scheduled_at or self._scheduled_at
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        num_tokens = len(output.token_ids)
        if not num_tokens:
            return
        self.output_tokens += num_tokens
        if self._last_at is None:
            self._first_at = at
            self._ledger.first_token(self.lane, at - self.submit.arrived_at)
        else:
            gap_ms = (at - self._last_at) * 1e3
            self._gaps += 1
            self._slow_gaps += self._ledger.gap(self.lane, gap_ms, at)
            self._longest_gap_ms = max(self._longest_gap_ms, gap_ms)
        self._last_at = at


def _finite(logprob: float) -> float:
    """Replace minus infinity, which JSON lacks, by the value that other servers write."""
    return max(logprob, -9999.0)


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, (end - start) * 1e3)
