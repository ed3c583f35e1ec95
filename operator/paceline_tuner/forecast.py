"""The pod's own step model, asked what a step would take. Milliseconds."""

from dataclasses import dataclass

from paceline_tuner.telemetry import ModelFit

_LEAST_MS = 1e-3  # a microsecond: what is said to take no time at all would have no end of capacity


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicts steps on one pod."""

    model: ModelFit
    """Its `q_r` covers 95 of 100 steps."""

    def step_ms(
        self, *, decode: float, prefill: float, context: float, attention: float = 0.0
    ) -> float:
        """The expected time of one step."""
        th0, th1, th2, th3, th4 = self.model.theta
        tokens = decode + prefill
        line = (
            th0
            + th1 * tokens
            + th2 * max(0.0, tokens - self.model.knee)
            + th3 * context * 1e-3
            + th4 * attention * 1e-6
        )
        return max(self.model.fast * self._correction(tokens) * line, _LEAST_MS)

    def chunk_ms(self, *, decode: float, prefill: float, context: float, before: float) -> float:
        """One step with a single prefill chunk after `before` tokens of its prompt."""
        attention = prefill * (before + prefill / 2)
        return self.step_ms(decode=decode, prefill=prefill, context=context, attention=attention)

    def _correction(self, tokens: float) -> float:
        bins = self.model.correction
        place = int(max(tokens - 1, 0) // self.model.bin_tokens)
        return bins[min(place, len(bins) - 1)] if bins else 1.0
