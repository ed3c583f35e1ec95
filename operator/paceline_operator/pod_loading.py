"""PodLoading: what a sidecar says of an engine that loads; free of what the cluster needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodLoading:
    """How far an engine has loaded its model."""

    stage: str
    """In the engine's words: `fetching`, `loading weights`, …"""
    fraction: float
    """How much of this stage is done, 0 to 1."""
