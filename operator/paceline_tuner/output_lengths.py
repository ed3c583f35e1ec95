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

import numpy as np
import numpy.typing as npt

from paceline_tuner.records import column
from paceline_tuner.telemetry import RequestRecord

_MIN_AT_RISK = 5.0  # requests: before so many are seen, one end would decide for all lengths


class Seen(NamedTuple):
    """One request as far as the window shows it."""

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


Outputs = npt.NDArray[np.float64]
"""Many `Seen`: a row for each of its fields, a column for each request."""


def seen(
    requests: Sequence[RequestRecord],
    running_tokens: Sequence[int],
    *,
    num_running: int,
    num_ended: int,
    begin: float,
    made: float,
) -> Outputs:
    """List the outputs of a window that began at `begin` (seconds, the pod's clock).

    Both may be samples, of `num_ended` and `num_running` requests. `made` is how many tokens a
    request that ran all the time made since then: telemetry does not say when each began.
    """
    tokens, weights = column(requests, "output_tokens"), column(requests, "weight")
    ended = np.zeros((4, len(requests)))
    ended[1], ended[2] = tokens, column(requests, "is_ok")
    ended[3] = num_ended / max(float(weights.sum()), 1.0) * weights
    for place in (column(requests, "arrived_at") < begin).nonzero()[0].tolist():
        ended[0, place] = _tokens_at(requests, place, begin)
    running = np.zeros((4, len(running_tokens)))
    if running_tokens:
        running[1] = running_tokens
        running[0] = (running[1] - int(made)).clip(min=0.0)
        running[3] = max(1.0, num_running / len(running_tokens))
    outputs = np.concatenate((ended, running), axis=1)
    return outputs[:, outputs[1] > 0]


def lengths(outputs: Outputs | Sequence[Seen], share: float = 0.99) -> OutputLengths | None:
    """Estimate mean, deviation and the quantile `share`; None where none has ended.

    With S(x) the share that is longer than x: mean = sum S(x), and the second moment is
    sum (2x + 1) S(x), over whole tokens x from 0 up to the longest seen.
    """
    if not isinstance(outputs, np.ndarray):
        outputs = np.array(outputs, np.float64).reshape(-1, 4).T
    starts, ends, has_ended, weights = outputs
    if not has_ended.any():
        return None
    order = ends.argsort(kind="stable")
    longest = ends[order]
    is_longer = np.ones(len(longest), np.bool_)
    np.not_equal(longest[1:], longest[:-1], out=is_longer[1:])
    longest, place = longest[is_longer], is_longer.cumsum() - 1
    ended = np.bincount(place, (weights * has_ended)[order])
    left = np.bincount(place, weights[order])
    enters = starts > 0
    at_risk = weights[~enters].sum() - (left.cumsum() - left)
    is_last = np.ones(len(longest), np.bool_)  # no more are to enter
    if enters.any():
        order = starts[enters].argsort()
        entering, gained = starts[enters][order], weights[enters][order].cumsum()
        num = entering.searchsorted(longest)
        at_risk = at_risk + np.concatenate(((0.0,), gained))[num]
        is_last = num == len(entering)
    at_risk = np.maximum(at_risk, left)  # where sums of weights are not exact
    # Few at the long end are all there is; while more are to enter, none may end it all.
    kept = 1 - ended / np.where(is_last, at_risk, at_risk + 1)
    kept = np.where(is_last | (at_risk >= _MIN_AT_RISK), kept.clip(min=0.0), 1.0)
    after = kept.cumprod()
    survival, before = np.ones(len(longest)), np.zeros(len(longest))
    survival[1:], before[1:] = after[:-1], longest[:-1]
    mean = sum((survival * (longest - before)).tolist())
    square = sum((survival * (longest * longest - before * before)).tolist())
    is_over = after <= 1 - share
    high = longest[is_over.argmax()] if is_over.any() else longest[-1]
    return OutputLengths(mean, math.sqrt(max(0.0, square - mean * mean)), float(high))


def _tokens_at(requests: Sequence[RequestRecord], place: int, begin: float) -> int:
    """Estimate the tokens of one at `begin`: they come evenly between the first and the last."""
    ttft_ms = float(column(requests, "ttft_ms")[place])
    tpot_ms = float(column(requests, "tpot_ms")[place])
    if math.isnan(ttft_ms) or math.isnan(tpot_ms) or tpot_ms == 0:
        return 0
    first_at = float(column(requests, "arrived_at")[place]) + ttft_ms / 1e3
    if first_at >= begin:
        return 0
    made = 1 + (begin - first_at) * 1e3 / tpot_ms
    return int(min(made, column(requests, "output_tokens")[place] - 1))
