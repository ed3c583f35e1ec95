"""Demand: what the clients ask of one pod: rate, lengths, contexts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_tuner.drift import STEADY, Drift
from paceline_tuner.output_lengths import OutputLengths, lengths, seen
from paceline_tuner.records import Column, Mask, column, quantile
from paceline_tuner.telemetry import RequestRecord
from paceline_tuner.window import Evidence

_ENOUGH = 20  # requests that arrived after a change and have ended
_SOON_S = 60.0
_FIRST = 100  # records: who arrived first is among those that ended first
_SAMPLE = 300  # records: an even sample is enough for means, and thousands of pods share a core


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of one window. Tokens; requests per second."""

    arrival_rps: float
    prompt: float
    """Mean uncached prompt tokens."""
    prompt_p99: float
    output: float
    """Mean output tokens, of requests that ended and of those that still run."""
    output_high: float
    """Output tokens that a share of requests, the SLA's objective, does not exceed."""
    context: float
    """Mean context of one running sequence."""
    held: float
    """Mean tokens whose KV one sequence holds when it ends."""
    held_deviation: float
    whole_prompt_deviation: float = 0.0
    """Of the tokens of a prompt, those that were cached included."""

    @property
    def cached(self) -> float:
        """Mean prompt tokens that need not be computed."""
        return max(self.held - self.output - self.prompt, 0.0)

    @property
    def kv_deviation(self) -> float:
        """The margin over the mean KV per sequence that a batch needs; negative if it needs less.

        A prompt's blocks are taken when it is admitted, so heavy prompts wait and only outputs
        surprise. The more of a sequence is its prompt, the more may run while prompts are light.
        """
        known = max(self.held - self.output, 0.0) / max(self.held, 1.0)
        return self.held_deviation - 2 * known * self.whole_prompt_deviation


ASSUMED = Demand(
    arrival_rps=0.0,
    prompt=256.0,
    prompt_p99=1024.0,
    output=64.0,
    output_high=256.0,
    context=300.0,
    held=320.0,
    held_deviation=160.0,
)
"""The demand of a pod that has served nothing yet."""


def demand(
    evidence: Evidence, last: Demand, drift: Drift = STEADY, *, objective: float = 0.99
) -> Demand:
    """Measure the demand; what the window does not show stays as it was in `last`.

    What came before a change of the load is left out, and long prompts are known as they arrive.
    """
    arrivals = _arrivals(evidence.since(drift.fresh_since))
    evidence = evidence.since(drift.lengths_since)
    sample = evidence.requests[:: 1 + len(evidence.requests) // _SAMPLE]
    made = column(sample, "output_tokens")
    is_served = (column(sample, "is_ok") > 0) & (made > 0)
    num_served = int(is_served.sum())
    is_new = evidence.now - drift.prompt_since < _SOON_S
    prompt, prompt_p99 = _prompts(sample, is_served, last, drift if is_new else STEADY)
    output = _outputs(evidence, sample, objective)
    held = (last.held, last.held_deviation, last.whole_prompt_deviation)
    if output is not None:
        held = _held(sample, is_served, output)
    return Demand(
        arrival_rps=arrivals,
        prompt=prompt,
        prompt_p99=prompt_p99,
        output=output.mean if output is not None else last.output,
        output_high=output.high if output is not None else last.output_high,
        context=_context(evidence, last.context),
        held=held[0],
        held_deviation=held[1] if num_served > 1 else last.held_deviation,
        whole_prompt_deviation=held[2] if num_served > 1 else last.whole_prompt_deviation,
    )


def _prompts(
    sample: Sequence[RequestRecord], is_served: Mask, last: Demand, drift: Drift
) -> tuple[float, float]:
    """Measure mean and p99 of the prompt tokens to compute, soon after prompts changed too."""
    is_new = is_served & (column(sample, "arrived_at") >= drift.prompt_since)
    num_new = int(is_new.sum())
    if num_new < _ENOUGH and drift.prompt_since > -math.inf:
        prompt = drift.uncached_prompt
        return prompt, last.prompt_p99 * prompt / max(last.prompt, 1.0)
    if num_new == 0:
        return last.prompt, last.prompt_p99
    uncached = column(sample, "prompt_tokens") - column(sample, "cached_tokens")
    uncached, weights = uncached.clip(min=1.0)[is_new], column(sample, "weight")[is_new]
    highest = quantile(uncached, weights, 0.99)
    return _mean(uncached, weights), last.prompt_p99 if highest is None else highest


def _outputs(
    evidence: Evidence, sample: Sequence[RequestRecord], share: float
) -> OutputLengths | None:
    load = evidence.load
    begin = evidence.now - evidence.window_s
    return lengths(
        seen(
            sample,
            load.running_output_tokens,
            num_running=load.running,
            num_ended=evidence.num_requests,
            begin=begin,
            made=evidence.made,
        ),
        share,
    )


def _held(
    sample: Sequence[RequestRecord], is_served: Mask, output: OutputLengths
) -> tuple[float, float, float]:
    """Measure mean and deviation of prompt plus output, and the deviation of the prompt.

    The served ones tell how both correlate.
    """
    prompts, made = column(sample, "prompt_tokens")[is_served], column(sample, "output_tokens")
    weights = column(sample, "weight")[is_served]
    total = max(float(weights.sum()), 1.0)
    mean = float((prompts * weights).sum()) / total
    off_prompt = prompts - mean
    off_made = made[is_served] - float((made[is_served] * weights).sum()) / total
    of_prompts = sum((off_prompt * off_prompt * weights).tolist()) / total
    both = sum((off_prompt * off_made * weights).tolist())
    square = of_prompts + 2 * both / total + output.deviation**2
    return mean + output.mean, math.sqrt(max(0.0, square)), math.sqrt(of_prompts)


def _context(evidence: Evidence, default: float) -> float:
    """Measure the mean context over the sequences of all steps."""
    stride = 1 + len(evidence.steps) // _SAMPLE
    rows = float(column(evidence.steps, "decode")[::stride].sum())
    return float(column(evidence.steps, "context")[::stride].sum()) / rows if rows else default


def counted_rps(evidence: Evidence, within_s: float) -> float:
    """Count what arrived within the last seconds, in requests per second over all of them.

    `Demand.arrival_rps` is that of the load as it is since it changed, and may come from a few
    seconds: pods share requests, so theirs add up only over the same time.
    """
    counted = evidence.since(evidence.now - within_s)
    return _arrived(counted)[0] / counted.window_s


def _arrivals(evidence: Evidence) -> float:
    """Requests per second since the first that is known of."""
    arrived, begin = _arrived(evidence)
    seconds = min(evidence.window_s, max(evidence.now - begin, 1.0))
    return arrived / seconds


def _arrived(evidence: Evidence) -> tuple[float, float]:
    """Count requests: those that ended, and the growth of those that did not; and since when."""
    inside = evidence.load.running + evidence.load.waiting
    at_start, begin = 0.0, evidence.now
    if evidence.steps:
        begin = float(column(evidence.steps, "at")[0])
        if begin < evidence.now - 0.9 * evidence.window_s:
            waiting, running = column(evidence.steps, "waiting"), column(evidence.steps, "running")
            at_start = float(running[0] + waiting[0])
    if evidence.requests:
        begin = min(begin, float(column(evidence.requests, "arrived_at")[:_FIRST].min()))
    return max(0.0, evidence.num_requests + inside - at_start), begin


def _mean(values: Column, weights: Column) -> float:
    """Average values that each stand for some."""
    return float((values * weights).sum()) / float(weights.sum())
