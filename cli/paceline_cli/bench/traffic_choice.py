"""The traffic that a person asked for, as an offered load. Pure, but for files that it reads."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from paceline_api.units import milliseconds, seconds
from paceline_cli.bench.trial import Stretch
from paceline_cli.errors import BadInputError
from paceline_cli.traffic.arrivals import Burst
from paceline_cli.traffic.calibration import OUTPUTS, PROMPTS
from paceline_cli.traffic.offered_load import (
    OfferedLoad,
    PlannedRequest,
    TokenLengths,
    plan,
    stretched,
)
from paceline_cli.traffic.prompts import SharedPrefix
from paceline_cli.traffic.traces import Trace, TraceError, read_trace
from paceline_tuner.service_spec import SLA

WARMUP_SHARE: Final = 0.1
"""Of the measured time."""
REQUESTS: Final = 400
"""The upper bound of a p99 needs 368."""
_OTHER_SEED: Final = 7919
"""The warm-up's texts are not those that are measured, which would be found in a prefix cache."""
_LENGTHS: Final = re.compile(r"(\d+)(?::(\d+(?:\.\d+)?))?(?::(\d+)-(\d+))?")
_BURST: Final = re.compile(r"(\d+)/(.+)")
_PREFIX: Final = re.compile(r"(\d+)(?:/(\d+))?")


@dataclass(frozen=True, slots=True)
class TrafficChoice:
    """What was asked for on the command line."""

    rate_rps: float | None = None
    cv: float = 1.0
    burst: Burst | None = None
    trace: Path | None = None
    lengths: Path | None = None
    prompt_tokens: TokenLengths = PROMPTS
    output_tokens: TokenLengths = OUTPUTS
    shared_prefix: SharedPrefix | None = None
    turns: int = 1
    think_s: float = 2.0
    cancelled: float = 0.0
    requests: int = REQUESTS
    seconds: float | None = None
    """Instead of as many as `requests` take."""
    warmup_s: float | None = None
    """A tenth of the measured time where None; of bursts, whole ones."""
    concurrency: int | None = None
    seed: int = 1
    longest_prompt: int | None = None
    longest_output: int | None = None

    @property
    def needs_rate(self) -> bool:
        """Whether somebody has to say or to measure how much a server takes."""
        has_own = self.burst is not None or self.trace is not None or self.concurrency is not None
        return self.rate_rps is None and not has_own


@dataclass(frozen=True, slots=True)
class ChosenTraffic:
    """An offered load, how long it is offered, and both in words."""

    load: OfferedLoad
    stretch: Stretch
    words: str

    def requests(self, corpus: str, seed: int) -> tuple[PlannedRequest, ...]:
        """Plan the warm-up, and then the same measured requests whatever the warm-up was."""
        warmup_s, measured_s = self.stretch.warmup_s, self.stretch.seconds
        measured = replace(self.load, block_s=measured_s)
        planned = plan(measured, corpus, duration_s=measured_s, seed=seed)
        moved = [replace(one, at_s=one.at_s + warmup_s) for one in planned]
        if not warmup_s:
            return tuple(moved)
        first = replace(self.load, block_s=warmup_s)
        return (*plan(first, corpus, duration_s=warmup_s, seed=seed + _OTHER_SEED), *moved)


def chosen_traffic(choice: TrafficChoice, rate_rps: float | None = None) -> ChosenTraffic:
    """Turn the choice into a load; `rate_rps` where none was given. Raises BadInputError."""
    trace = _trace(choice.trace)
    pairs = _trace(choice.lengths)
    rate = choice.rate_rps or rate_rps
    if rate is None and choice.burst is not None:
        rate = choice.burst.rate_rps
    if rate is None and trace is not None:
        rate = (len(trace.requests) - 1) / trace.seconds
    if choice.concurrency is not None:
        return _closed(choice, pairs or trace)
    if rate is None:
        raise BadInputError(
            "say how much: --rate, --burst, --trace, or --concurrency for a closed loop"
        )
    measured_s = choice.seconds or choice.requests / (rate * choice.turns)
    warmup_s = choice.warmup_s if choice.warmup_s is not None else WARMUP_SHARE * measured_s
    if choice.burst is not None:
        # Whole periods: a measured stretch begins with a burst and ends with its silence.
        every_s = choice.burst.every_s
        measured_s = every_s * max(1, round(measured_s / every_s))
        warmup_s = every_s * round(warmup_s / every_s + 0.49)
    load = _load(choice, rate, trace, pairs)
    words = _words(choice, rate, trace, pairs, measured_s)
    return ChosenTraffic(load, Stretch(measured_s, warmup_s), words)


def _closed(choice: TrafficChoice, pairs: Trace | None) -> ChosenTraffic:
    assert choice.concurrency is not None  # noqa: S101 - asked for by the caller
    warmup = max(choice.concurrency, round(WARMUP_SHARE * choice.requests))
    whole = warmup + choice.requests
    # A second each: arrival times are not looked at.
    load = _load(choice, 1.0, None, pairs)
    words = f"closed loop, {choice.concurrency} at once"
    return ChosenTraffic(
        load,
        Stretch(float(whole), concurrency=choice.concurrency, warmup_requests=warmup),
        f"{words}; {_lengths_words(choice, None, pairs)}",
    )


def _load(
    choice: TrafficChoice, rate: float, trace: Trace | None, pairs: Trace | None
) -> OfferedLoad:
    return OfferedLoad(
        rate_rps=rate,
        cv=choice.cv,
        prompt_tokens=choice.prompt_tokens,
        output_tokens=choice.output_tokens,
        burst=choice.burst,
        trace=trace.requests if trace is not None else (),
        lengths=pairs.requests if pairs is not None else (),
        shared_prefix=choice.shared_prefix,
        turns=choice.turns,
        think_s=choice.think_s,
        cancelled=choice.cancelled,
        longest_prompt=choice.longest_prompt,
        longest_output=choice.longest_output,
    )


def _trace(path: Path | None) -> Trace | None:
    if path is None:
        return None
    try:
        return read_trace(path)
    except TraceError as problem:
        raise BadInputError(str(problem)) from problem


def _words(
    choice: TrafficChoice, rate: float, trace: Trace | None, pairs: Trace | None, measured_s: float
) -> str:
    if trace is not None:
        how = (
            f"as in the {trace.format} trace, {rate:.3g} a second on average,"
            f" {_part(trace, rate, measured_s)}{_unanswered(trace)}"
        )
    elif choice.burst is not None:
        how = f"{choice.burst.count} at once every {choice.burst.every_s:g} s"
    elif choice.cv == 0:
        how = f"{rate:.3g} a second, evenly spaced"
    elif choice.cv == 1:
        how = f"{rate:.3g} a second, a Poisson process"
    else:
        how = f"{rate:.3g} a second, gamma gaps with a coefficient of variation of {choice.cv:g}"
    return f"open loop, {how}; {_lengths_words(choice, trace, pairs)}"


def _part(trace: Trace, rate: float, measured_s: float) -> str:
    """Say how much of the trace is measured."""
    due = stretched(trace.requests, rate, measured_s)
    count, whole = sum(one.at_s < measured_s for one in due), len(trace.requests)
    if count < whole:
        return f"the first {count:,} of its {whole:,} requests"
    again = f", some again: {count:,}" if count > whole else ""
    return f"all of its {whole:,} requests{again}"


def _unanswered(trace: Trace) -> str:
    """Say how many requests of the file are left out."""
    if not trace.num_unanswered:
        return ""
    return f" ({trace.num_unanswered:,} more are left out: they had no answer)"


def _lengths_words(choice: TrafficChoice, trace: Trace | None, pairs: Trace | None) -> str:
    if trace is not None:
        parts = ["lengths of the trace"]
    elif choice.lengths is not None and pairs is not None:
        parts = [f"lengths drawn from {choice.lengths.name}{_unanswered(pairs)}"]
    else:
        prompts, answers = _spread(choice.prompt_tokens), _spread(choice.output_tokens)
        parts = [f"prompts of {prompts}, answers of {answers}"]
    if choice.shared_prefix is not None:
        shared = choice.shared_prefix
        parts.append(f"{shared.groups} shared beginnings of {shared.tokens} tokens")
    if choice.turns > 1:
        parts.append(f"conversations of {choice.turns} turns, {choice.think_s:g} s apart")
    if choice.cancelled:
        parts.append(f"{choice.cancelled:.0%} cancelled")
    return "; ".join(parts)


def _spread(lengths: TokenLengths) -> str:
    if lengths.sigma == 0:
        return f"{lengths.median:g} tokens"
    return f"{lengths.min} to {lengths.max} tokens, median {lengths.median:g}"


def token_lengths(text: str) -> TokenLengths:
    """Read `180`, `180:0.8` or `180:0.8:16-900`: median, sigma of the logarithm, bounds."""
    match = _LENGTHS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no length such as 180, 180:0.8 or 180:0.8:16-900")
    median, sigma = int(match[1]), float(match[2] or 0)
    low, high = int(match[3] or 1), int(match[4] or 64 * max(median, 1))
    if not 1 <= low <= median <= high:
        raise ValueError(f"{text!r}: the median must lie between its bounds, above 0")
    return TokenLengths(median, sigma, low, high)


def burst(text: str) -> Burst:
    """Read `200/30s`: 200 at once, every 30 seconds."""
    match = _BURST.fullmatch(text.strip())
    if match is None or int(match[1]) == 0 or seconds(match[2]) <= 0:
        raise ValueError(f"{text!r} is no burst such as 200/30s")
    return Burst(int(match[1]), seconds(match[2]))


def shared_prefix(text: str) -> SharedPrefix:
    """Read `512` or `512/4`: tokens, and how many different beginnings."""
    match = _PREFIX.fullmatch(text.strip())
    if match is None or 0 in {int(match[1]), int(match[2] or 1)}:
        raise ValueError(f"{text!r} is no shared beginning such as 512 or 512/4")
    return SharedPrefix(int(match[1]), int(match[2] or 1))


def with_targets(
    sla: SLA,
    *,
    ttft: str | None = None,
    tpot: str | None = None,
    itl: str | None = None,
    e2e: str | None = None,
    objective: float | None = None,
) -> SLA:
    """Replace what is given. Raises ValueError."""

    def chosen(text: str | None, declared: float | None) -> float | None:
        return declared if text is None else milliseconds(text)

    return SLA(
        ttft_p99_ms=chosen(ttft, sla.ttft_p99_ms),
        tpot_p99_ms=chosen(tpot, sla.tpot_p99_ms),
        itl_p99_ms=chosen(itl, sla.itl_p99_ms),
        objective=sla.objective if objective is None else objective,
        e2e_p99_ms=chosen(e2e, sla.e2e_p99_ms),
        ttft_by_prompt_tokens=sla.ttft_by_prompt_tokens if ttft is None else (),
    )
