"""What an engine measured of its steps before it served anybody."""

import msgspec


class ProfiledStep(msgspec.Struct, frozen=True):
    """Steps of one size, in the features of the step model (docs/runtime-api.md)."""

    decode: int
    context: int
    """C: of all decodes, tokens."""
    prefill: int
    attention: int
    """A."""
    ms: float
    """Median of the repeats; never less than that of a smaller step."""


class StepProfile(msgspec.Struct, frozen=True):
    """Steps of many sizes, shortest expected first."""

    took_s: float
    """All of it, what no figure came of included."""
    is_used: bool
    """The step model began with it; False where it told too little."""
    steps: list[ProfiledStep] = []
