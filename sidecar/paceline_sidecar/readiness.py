"""The body of `/health/ready`."""

from typing import Literal

import msgspec

from paceline_wire import Loading


class Progress(msgspec.Struct, frozen=True):
    """How far a loading engine is."""

    stage: str
    fraction: float


class Readiness(msgspec.Struct, frozen=True):
    """Whether a request can be served now, and what is missing."""

    status: Literal["ready", "not ready"]
    missing: list[str]
    loading: Progress | msgspec.UnsetType = msgspec.UNSET


def readiness(missing: list[str], loading: Loading | None) -> Readiness:
    """Say it; what loads is of interest only while something is missing."""
    if not missing:
        return Readiness("ready", [])
    progress = Progress(loading.stage, loading.fraction) if loading else msgspec.UNSET
    return Readiness("not ready", missing, progress)
