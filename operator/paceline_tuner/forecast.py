"""Forecast: what a step would take on one pod, by the step model that the pod has fitted."""

from dataclasses import dataclass

import numpy as np

from paceline_tuner.records import Column
from paceline_tuner.telemetry import ModelFit
from paceline_wire.step_cost import chunk_attention, correction_bin, step_ms

_LEAST_MS = 1e-3  # a microsecond: a step that takes no time at all would have no end of capacity


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicts steps on one pod."""

    model: ModelFit
    """Its `q_r` covers 95 of 100 steps."""

    def step_ms(
        self, *, decode: float, prefill: float, context: float, attention: float = 0.0
    ) -> float:
        """The expected time of one step, milliseconds."""
        return self._ms(decode + prefill, context, attention)

    def steps_ms(
        self, *, decode: Column, prefill: Column, context: Column, attention: Column
    ) -> Column:
        """The expected times of many steps, milliseconds."""
        model, tokens = self.model, decode + prefill
        lines_ms: Column = step_ms(model.theta, model.knee, tokens, context, attention)
        if model.correction:
            bins = np.minimum(
                (tokens - 1).clip(min=0) // model.bin_tokens, len(model.correction) - 1
            )
            lines_ms = model.fast * np.array(model.correction)[bins.astype(np.intp)] * lines_ms
        else:
            lines_ms = model.fast * lines_ms
        return np.maximum(lines_ms, _LEAST_MS)

    def chunk_ms(self, *, decode: float, prefill: float, context: float, before: float) -> float:
        """One step with a single prefill chunk after `before` tokens of its prompt."""
        return self._ms(decode + prefill, context, chunk_attention(prefill, before))

    def _ms(self, tokens: float, context: float, attention: float) -> float:
        model = self.model
        line_ms = step_ms(model.theta, model.knee, tokens, context, attention)
        bins = model.correction
        factor = bins[correction_bin(tokens, model.bin_tokens, len(bins))] if bins else 1.0
        return max(model.fast * factor * line_ms, _LEAST_MS)
