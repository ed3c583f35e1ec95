"""Condition: what is concluded about one aspect of a service, as Kubernetes words it."""

from dataclasses import dataclass
from typing import Literal

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition before it has a history; figures go into other fields, never into `message`."""

    type: str
    status: Truth
    reason: str
    """One of the reasons that docs/conditions.md lists for the type."""
    message: str


Obstacle = Literal[
    "",
    "CapacityExceeded",
    "KVBound",
    "TTFTvsTPOTConflict",
    "TPOTFloor",
    "TTFTFloor",
    "E2EFloor",
    "DegradedHardware",
]
"""Why no limits keep the SLA: a reason of `SLAAchievable`, empty where some limits keep it."""
