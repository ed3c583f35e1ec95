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
    ended_weight = num_ended / max(sum([record.weight for record in requests]), 1)
    outputs = [
        Seen(
            _tokens_at(record, begin) if record.arrived_at < begin else 0,
            record.output_tokens,
            record.outcome == "ok",
            ended_weight * record.weight,
        )
        for record in requests
        if record.output_tokens > 0
    ]
    weight = max(1.0, num_running / len(running_tokens)) if running_tokens else 1.0
    outputs.extend(
        Seen(max(tokens - int(made), 0), tokens, False, weight)
        for tokens in running_tokens
        if tokens > 0
    )
    return outputs


def lengths(outputs: Sequence[Seen], share: float = 0.99) -> OutputLengths | None:
    """Estimate mean, deviation and the quantile `share`; None where none has ended.

    With S(x) the share that is longer than x: mean = sum S(x), and the second moment is
    sum (2x + 1) S(x), over whole tokens x from 0 up to the longest seen.
    """
    ended_at: dict[int, float] = {}
    left_at: dict[int, float] = {}
    at_risk, late = 0.0, []
    for start, end, has_ended, weight in outputs:
        left_at[end] = left_at.get(end, 0.0) + weight
        if has_ended:
            ended_at[end] = ended_at.get(end, 0.0) + weight
        if start > 0:
            late.append((start, weight))
        else:
            at_risk += weight
    if not ended_at:
        return None
    late.sort(reverse=True)  # the next to enter comes last
    survival, last = 1.0, 0
    mean = square = 0.0
    longer: list[tuple[int, float]] = []
    for length in sorted(left_at):
        while late and late[-1][0] < length:
            at_risk += late.pop()[1]
        mean += survival * (length - last)
        square += survival * (length * length - last * last)
        ended, left = ended_at.get(length, 0.0), left_at[length]
        # Few at the long end are all there is; while more are to enter, none may end it all.
        if not late:
            survival *= max(0.0, 1 - ended / at_risk)
        elif at_risk >= _MIN_AT_RISK:
            survival *= max(0.0, 1 - ended / (at_risk + 1))
        at_risk -= left
        last = length
        longer.append((length, survival))
        if survival <= 0:
            break
    high = next((length for length, left in longer if left <= 1 - share), last)
    deviation = math.sqrt(max(0.0, square - mean * mean))
    return OutputLengths(mean, deviation, float(high))


def _tokens_at(record: RequestRecord, begin: float) -> int:
    """Estimate its tokens at `begin`: they come evenly between the first and the last."""
    if record.ttft_ms is None or not record.tpot_ms:
        return 0
    first_at = record.arrived_at + record.ttft_ms / 1e3
    if first_at >= begin:
        return 0
    made = 1 + (begin - first_at) * 1e3 / record.tpot_ms
    return int(min(made, record.output_tokens - 1))
