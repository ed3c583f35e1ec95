"""OutputLengths: how long outputs are, by requests that ended and that still run. Tokens.

Requests that ended in a window are the short ones while a pod is overloaded. The product-limit
estimate counts the running ones for as far as they came: E. L. Kaplan and P. Meier,
"Nonparametric estimation from incomplete observations", JASA 53 (1958), with delayed entry as in
J. P. Klein and M. L. Moeschberger, "Survival Analysis" (2003), section 4.6:

    S(x) = product over ends y <= x of 1 - ends(y) / at_risk(y)

At risk at y is who passed y tokens inside the window: whoever passed it before the window began
would be counted without those that had ended by then.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline_tuner.telemetry import RequestRecord

_MIN_AT_RISK = 5.0  # requests: before so many are seen, one end would decide for all lengths


class Seen(NamedTuple):
    """One request as far as the window shows it. A tuple: hundreds are made per decision."""

    start: int
    """Tokens that it had when the window began."""
    end: int
    """Tokens that it has now, or ended with."""
    has_ended: bool
    """It came to its own end: false while it runs, or where client or engine gave up."""
    weight: float = 1.0
    """Requests that it stands for."""


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Mean and deviation up to the longest output seen: nobody knows what lies beyond it."""

    mean: float
    deviation: float
    high: float
    """The length that a share does not exceed; the longest seen where nobody knows."""


def seen(
    requests: Sequence[RequestRecord],
    running_tokens: Sequence[int],
    *,
    num_running: int,
    num_ended: int,
    begin: float,
    made: float,
) -> list[Seen]:
    """List the outputs of a window that began at `begin` (seconds, the pod's clock).

    Both may be samples, of `num_ended` and `num_running` requests. `made` is how many tokens a
    request that ran all the time made since then: telemetry does not say when each began.
    """
    ended_weight = num_ended / max(len(requests), 1)
    outputs = [
        Seen(
            _tokens_at(record, begin),
            record.output_tokens,
            has_ended=record.outcome == "ok",
            weight=ended_weight,
        )
        for record in requests
        if record.output_tokens > 0
    ]
    weight = max(1.0, num_running / len(running_tokens)) if running_tokens else 1.0
    outputs.extend(
        Seen(int(max(tokens - made, 0.0)), tokens, has_ended=False, weight=weight)
        for tokens in running_tokens
        if tokens > 0
    )
    return outputs


def lengths(outputs: Sequence[Seen], share: float = 0.99) -> OutputLengths | None:
    """Estimate mean, deviation and the quantile `share`; None where none has ended.

    With S(x) the share that is longer than x: mean = sum S(x), and the second moment is
    sum (2x + 1) S(x), over whole tokens x from 0 up to the longest seen.
    """
    if not any(output.has_ended for output in outputs):
        return None
    entering = sorted([(output.start, output.weight) for output in outputs])
    leaving = sorted([(output.end, output.weight, output.has_ended) for output in outputs])
    num = len(outputs)
    at_risk, survival, last = 0.0, 1.0, 0
    mean = square = 0.0
    high: int | None = None
    entered = index = 0
    while index < num:
        length = leaving[index][0]
        while entered < num and entering[entered][0] < length:
            at_risk += entering[entered][1]
            entered += 1
        mean += survival * (length - last)
        square += survival * (length**2 - last**2)
        ended = left = 0.0
        while index < num and leaving[index][0] == length:
            left += leaving[index][1]
            ended += leaving[index][1] if leaving[index][2] else 0.0
            index += 1
        # Few at the long end are all there is; while more are to enter, none may end it all.
        if entered == num:
            survival *= max(0.0, 1 - ended / at_risk)
        elif at_risk >= _MIN_AT_RISK:
            survival *= max(0.0, 1 - ended / (at_risk + 1))
        at_risk -= left
        last = length
        if high is None and survival <= 1 - share:
            high = length
        if survival <= 0:
            break
    deviation = math.sqrt(max(0.0, square - mean * mean))
    return OutputLengths(mean, deviation, float(last if high is None else high))


def _tokens_at(record: RequestRecord, begin: float) -> int:
    """Estimate its tokens at `begin`: they come evenly between the first and the last."""
    if record.ttft_ms is None or not record.tpot_ms:
        return 0
    first_at = record.arrived_at + record.ttft_ms / 1e3
    if first_at >= begin:
        return 0
    made = 1 + (begin - first_at) * 1e3 / record.tpot_ms
    return int(min(made, record.output_tokens - 1))
