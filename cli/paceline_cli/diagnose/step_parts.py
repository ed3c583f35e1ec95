"""What one step's time went to, by the engine's own step model."""

from dataclasses import astuple, dataclass

from paceline_tuner.telemetry import ModelFit, Step
from paceline_wire.step_cost import step_terms


@dataclass(frozen=True, slots=True)
class StepParts:
    """Milliseconds; they add up to the step's wall time, and a draft model's before it."""

    host: float = 0.0
    """Scheduling, inputs, settling: outside the device."""
    fixed: float = 0.0
    """What every step costs: the weights are read once, kernels are launched."""
    decode: float = 0.0
    """Arithmetic of the decoding tokens."""
    kv: float = 0.0
    """Keys and values of the decodes' contexts, read from memory."""
    prefill: float = 0.0
    """Arithmetic and attention of prompt tokens."""
    draft: float = 0.0
    """A draft model's steps."""

    @property
    def total(self) -> float:
        """The wall time, the draft model's included."""
        return self.host + self.fixed + self.decode + self.kv + self.prefill + self.draft

    def __add__(self, other: "StepParts") -> "StepParts":
        """Add part by part."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StepParts(*(mine + theirs for mine, theirs in pairs))

    def __mul__(self, factor: float) -> "StepParts":
        """Multiply each part."""
        return StepParts(*(part * factor for part in astuple(self)))


def split(step: Step, model: ModelFit) -> StepParts:
    """Share the measured time as the model's terms share the predicted one.

    `th0` holds the host's work, which was measured apart. A step in which the model sees nothing
    is fixed cost.
    """
    th0, th1, th2, th3, th4 = model.theta
    tokens = step.decode + step.prefill
    terms = step_terms(model.knee, tokens, step.context, step.attention)
    _, each, above, thousands, millions = terms
    arithmetic = th1 * each + th2 * above
    of_prompts = step.prefill / tokens if tokens else 0.0
    host = min(max(step.host_ms, 0.0), step.wall_ms)
    said = StepParts(
        fixed=max(0.0, th0 - host),
        decode=arithmetic * (1 - of_prompts),
        kv=th3 * thousands,
        prefill=arithmetic * of_prompts + th4 * millions,
    )
    device = step.wall_ms - host
    if said.total <= 0:
        return StepParts(host=host, fixed=device, draft=step.draft_ms)
    return said * (device / said.total) + StepParts(host=host, draft=step.draft_ms)
