"""Slowdown: how much longer steps take than equal steps took while the device was well.

The engine's step model cannot tell: it is fitted anew every few seconds, and what a hot neighbour
or a throttled clock costs is soon a part of it. So one fit is kept as a reference, with what it
missed of each kind of step:

    ratio   = median over steps of  ms / (reference ms * usual[kind])
    usual   = mean of              ms / (reference ms * ratio)       of each kind, in logarithms
    kind    = half octave of tokens, 25,000 tokens of context, octave of attention

A kind that was never seen is learned at the present ratio, so a new load is no slow device, and a
slow device stays one under a new load. The line between kinds moves with neither.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline_tuner.forecast import Forecast
from paceline_tuner.records import after, column
from paceline_tuner.telemetry import ModelFit, Step
from paceline_tuner.window import Evidence

Kind = tuple[int, int, int]

_LEARNED_STEPS = 200
"""A fit of fewer steps saw too few kinds of them to be a reference."""
_SLOW, _WELL = 1.15, 1.08
_QUICK = 0.85
"""Below this ratio the reference was taken on a slow device."""
_LASTS_S = 30.0
_FAR_OFF = 1.15  # of a model remembered from other pods: less may be the model's own error
_SAMPLE = 60  # steps of one period
_MIN_STEPS = 5  # of known kinds, for a ratio
_KNOWN = 20  # steps of a kind, before it tells anything
_USUAL_STEPS = 200  # a kind's usual is the mean of about so many
_MAX_KINDS = 512
_CONTEXT = 25_000
_LEAST_MS = 1e-3
_LEAST_PAIRS = 250_000  # of attention: below, they cost nothing


@dataclass(frozen=True, slots=True)
class Usual:
    """How long one kind of step took while the device was well."""

    num: int = 0
    log: float = 0.0
    """Mean of the logarithm of measured over reference."""

    def add(self, value: float) -> "Usual":
        """Take in one step."""
        num = min(self.num + 1, _USUAL_STEPS)
        return Usual(num, self.log + (value - self.log) / num)


_NEVER_SEEN = Usual()


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One engine's steps against its own past. Times are the pod's clock."""

    reference: ModelFit | None = None
    usual: Mapping[Kind, Usual] = field(default_factory=dict)
    last_seq: int = 0
    ratio: float = 1.0
    """How long steps take now, over how long they usually took."""
    slow_since: float | None = None
    well_since: float | None = None
    quick_since: float | None = None
    is_slow: bool = False
    """Slow for half a minute or more, until it has been well for as long."""

    def observe(self, evidence: Evidence, remembered: ModelFit | None = None) -> "Slowdown":
        """Take in the steps since the last decision.

        With `remembered`, a model that pods of the same kind have proven, an engine that is slow
        from its start is told from one that is as it should be.
        """
        new = after(evidence.steps, self.last_seq)
        if not new:
            return self
        seen = replace(self, last_seq=int(column(new, "seq")[-1]))
        if self.reference is None:
            return _begun(seen, evidence, remembered)
        logs = _logs(self.reference, new, is_clean=True)
        return _rebased(_timed(_compared(seen, logs), evidence.now), evidence.now)


def _begun(seen: Slowdown, evidence: Evidence, remembered: ModelFit | None) -> Slowdown:
    """Choose the reference, once the engine has a fit of its own."""
    model = evidence.model
    if not model.valid or model.samples < _LEARNED_STEPS:
        return seen
    if remembered is None:
        return replace(seen, reference=model)
    ratio = math.exp(statistics.median(log for _, log in _logs(remembered, evidence.steps)))
    is_well = 1 / _FAR_OFF < ratio < _FAR_OFF
    return replace(seen, reference=remembered, ratio=1.0 if is_well else ratio)


def _compared(seen: Slowdown, logs: Sequence[tuple[Kind, float]]) -> Slowdown:
    """Measure the ratio by the known kinds of these steps, and learn from the steps."""
    usual = dict(seen.usual)
    known = [log - usual[kind].log for kind, log in logs if _is_known(usual.get(kind))]
    ratio = math.exp(statistics.median(known)) if len(known) >= _MIN_STEPS else seen.ratio
    log_ratio = math.log(ratio)
    for kind, log in logs:
        if kind in usual or len(usual) < _MAX_KINDS:
            usual[kind] = usual.get(kind, _NEVER_SEEN).add(log - log_ratio)
    return replace(seen, usual=usual, ratio=ratio)


def _timed(seen: Slowdown, now: float) -> Slowdown:
    """Note since when the device is slow, well or quick, and whether it is slow for long enough."""
    slow_since = (seen.slow_since or now) if seen.ratio > _SLOW else None
    well_since = (seen.well_since or now) if seen.ratio < _WELL else None
    quick_since = (seen.quick_since or now) if seen.ratio < _QUICK else None
    is_slow = _has_lasted(slow_since, now) or (seen.is_slow and not _has_lasted(well_since, now))
    return replace(
        seen,
        slow_since=slow_since,
        well_since=well_since,
        quick_since=quick_since,
        is_slow=is_slow,
    )


def _rebased(seen: Slowdown, now: float) -> Slowdown:
    """Take the present as usual where it is better than all that is known."""
    if not _has_lasted(seen.quick_since, now):
        return seen
    gain = math.log(seen.ratio)
    usual = {kind: replace(kept, log=kept.log + gain) for kind, kept in seen.usual.items()}
    return replace(seen, usual=usual, ratio=1.0, quick_since=None)


def _is_known(usual: Usual | None) -> bool:
    return usual is not None and usual.num >= _KNOWN


def _logs(
    reference: ModelFit, steps: Sequence[Step], *, is_clean: bool = False
) -> list[tuple[Kind, float]]:
    """Give the kinds of an even sample, and the logarithm of measured over reference.

    With `is_clean` leave out what else delayed.
    """
    stride = slice(None, None, 1 + len(steps) // _SAMPLE)
    names = ("decode", "prefill", "context", "attention", "wall_ms")
    values = [column(steps, name)[stride] for name in names]
    if is_clean:
        kept = column(steps, "clean")[stride] > 0
        values = [value[kept] for value in values]
    decode, prefill, context, attention, wall_ms = values
    reference_ms = Forecast(reference).steps_ms(
        decode=decode, prefill=prefill, context=context, attention=attention
    )
    ratios = (wall_ms.clip(min=_LEAST_MS) / reference_ms).tolist()
    shapes = zip((decode + prefill).tolist(), context.tolist(), attention.tolist(), strict=True)
    return [(_kind(*shape), math.log(ratio)) for shape, ratio in zip(shapes, ratios, strict=True)]


def _has_lasted(since: float | None, now: float) -> bool:
    return since is not None and now - since >= _LASTS_S


def _kind(tokens: float, context: float, attention: float) -> Kind:
    pairs = max(attention / _LEAST_PAIRS, 1.0)
    return int(2 * math.log2(max(tokens, 1.0))), int(context // _CONTEXT), int(math.log2(pairs))
