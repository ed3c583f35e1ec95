"""The ways of batching that `bench compare` sets beside each other. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

STATIC_WAIT_S: Final = 60.0
"""Longer than a batch gathers under any load worth comparing; the last, smaller one must go too."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of batching: how the engine is told, and whether the tuner moves its limits."""

    name: str
    what: str
    engine: Mapping[str, str] = field(default_factory=dict)
    mode: Literal["Observe", "Auto"] = "Observe"
    batch_size: int | None = None
    """Max batch size instead of the manifest's."""
    last_wait_s: float = 0.0
    """How long the last, smaller batch of a trial waits for others, at most."""


def arms(max_wait_s: float, static_batch: int | None = None) -> tuple[Arm, ...]:
    """List them, from the plainest on; dynamic batches wait up to `max_wait_s`.

    A static batch has `static_batch` requests, or as many as the max batch size.
    """
    dynamic = {
        "PACELINE_ENGINE_SCHEDULING": "dynamic",
        "PACELINE_ENGINE_DYNAMIC_MAX_WAIT_S": f"{max_wait_s:g}",
    }
    mixed = {"PACELINE_ENGINE_DYNAMIC_BUCKETS": "false"}
    bucketed = {"PACELINE_ENGINE_DYNAMIC_BUCKETS": "true"}  # whatever the manifest says
    waits = {"PACELINE_ENGINE_DYNAMIC_MAX_WAIT_S": f"{STATIC_WAIT_S:g}"}
    continuous = {"PACELINE_ENGINE_SCHEDULING": "continuous"}
    return (
        Arm(
            "static",
            f"waits for exactly {static_batch or 'as many'} requests"
            f"{'' if static_batch else ' as the max batch size'}, {STATIC_WAIT_S:g} s at most",
            dynamic | mixed | waits,
            batch_size=static_batch,
            last_wait_s=STATIC_WAIT_S,
        ),
        Arm(
            "dynamic, mixed",
            f"waits up to {max_wait_s:g} s, prompts of all lengths together",
            dynamic | mixed,
        ),
        Arm(
            "dynamic, bucketed",
            f"waits up to {max_wait_s:g} s, prompts of about equal length together",
            dynamic | bucketed,
        ),
        Arm("continuous", "requests join and leave at each step; limits as declared", continuous),
        Arm(
            "continuous, tuned",
            "the same, and the tuner moves the limits",
            continuous,
            mode="Auto",
        ),
    )
