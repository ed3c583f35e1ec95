"""What became of a change: the prediction against the next clean period. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline_tuner.forecast import Forecast
from paceline_tuner.latency_sketch import weighted_p99
from paceline_tuner.records import Column, Mask, column
from paceline_tuner.service_report import ChangeOutcome, PredictionCheck
from paceline_tuner.telemetry import ModelFit, Step
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.window import Evidence

_MIN_STEPS = 10
_MIN_REQUESTS = 5
_GIVEN_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the step model predicts under the chosen limits."""

    step_ms: float | None = None
    """A full batch with its share of prefill, without q_r."""
    ttft_ms: float | None = None
    """First token of the longest usual prompt, were it to arrive now."""
    capacity_rps: float | None = None


NOT_PREDICTED = Prediction()


@dataclass(frozen=True, slots=True)
class PendingOutcome:
    """A change whose outcome is not known yet."""

    at: float
    """Unix seconds."""
    since: float
    """The pod's clock."""
    epoch: int
    """The epoch of the limits that held before."""
    limits: TunedLimits
    model: ModelFit
    """The model that predicted."""
    prediction: Prediction

    def is_over(self, evidence: Evidence, current: TunedLimits) -> bool:
        """Other limits hold, or too little ran for a minute."""
        is_another = current != self.limits and evidence.limits.epoch > self.epoch
        return is_another or evidence.now - self.since > _GIVEN_UP_S

    def judge(
        self, evidence: Evidence, current: TunedLimits, interval_s: float
    ) -> ChangeOutcome | None:
        """Compare; None while the first clean period under the new limits is not over.

        Steps are compared by the shapes that ran: how full they were is not what was predicted.
        """
        is_clean = current == self.limits and evidence.load.running <= current.batch_size
        if not is_clean or evidence.now - self.since < interval_s / 2:
            return None
        # Only steps of the new limits, and of no more sequences than they admit.
        steps = evidence.since(self.since).steps
        is_ours = (column(steps, "clean") > 0) & (column(steps, "epoch") > self.epoch)
        is_ours &= column(steps, "running") <= current.batch_size
        num = int(np.count_nonzero(is_ours))
        if num < _MIN_STEPS:
            return None
        measured_ms = sum(column(steps, "wall_ms")[is_ours].tolist()) / num
        predicted_ms = sum(self._steps_ms(steps, is_ours).tolist()) / num
        has_queue = bool((column(steps, "waiting")[is_ours] > 0).all())
        served_rps = self._served_rps(evidence) if has_queue else None
        return ChangeOutcome(
            of=self.at,
            steps=num,
            step_ms=_compared(predicted_ms, measured_ms),
            ttft_ms=_compared(self.prediction.ttft_ms, self._ttft_ms(evidence)),
            capacity_rps=_compared(self.prediction.capacity_rps, served_rps),
        )

    def _steps_ms(self, steps: Sequence[Step], chosen: Mask) -> Column:
        return Forecast(self.model).steps_ms(
            decode=column(steps, "decode")[chosen],
            prefill=column(steps, "prefill")[chosen],
            context=column(steps, "context")[chosen],
            attention=column(steps, "attention")[chosen],
        )

    def _ttft_ms(self, evidence: Evidence) -> float | None:
        """Measure the slowest first token of the requests that arrived since."""
        ended = evidence.finished(self.since)
        firsts = [(r.ttft_ms, r.weight) for r in ended if r.ttft_ms is not None]
        return weighted_p99(firsts) if len(firsts) >= _MIN_REQUESTS else None

    def _served_rps(self, evidence: Evidence) -> float | None:
        """Count requests served per second; that tells nothing where the queue emptied."""
        seconds = evidence.now - self.since
        ended = [r for r in evidence.requests if r.finished_at >= self.since and r.outcome == "ok"]
        num_served = sum(record.weight for record in ended)
        return num_served / seconds if num_served >= _MIN_REQUESTS else None


def settle(
    pending: PendingOutcome | None, evidence: Evidence, current: TunedLimits, interval_s: float
) -> tuple[ChangeOutcome | None, PendingOutcome | None]:
    """Give the outcome, if it is known now, and what is still to be waited for."""
    if pending is None or pending.is_over(evidence, current):
        return None, None
    outcome = pending.judge(evidence, current, interval_s)
    return outcome, pending if outcome is None else None


def _compared(predicted: float | None, measured: float | None) -> PredictionCheck | None:
    if predicted is None or measured is None or predicted <= 0:
        return None
    return PredictionCheck(predicted, measured, measured / predicted - 1)
