"""A profile of the next steps, op by op, for a person who asks why they take so long."""

import msgspec


class ProfileSteps(msgspec.Struct, frozen=True, tag=True):
    """Record the next steps with torch's profiler. Answered by `StepTrace` with the same `call`."""

    call: int
    steps: int
    within_s: float
    """Seconds until it ends with the steps that ran; an engine without requests runs none."""


class StepTrace(msgspec.Struct, frozen=True, tag=True):
    """What was recorded, or why nothing was."""

    call: int
    steps: int = 0
    """How many ran."""
    chrome_gzip: bytes = b""
    """The trace for Chrome's and Perfetto's viewers: JSON, in gzip."""
    error: str | None = None
    is_busy: bool = False
    """Whether the error is that another profile is being recorded."""
