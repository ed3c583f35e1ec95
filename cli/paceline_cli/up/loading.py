"""How far an engine has loaded its model, read from what `/health/ready` says is missing."""

import json
import re
from dataclasses import dataclass
from typing import Final

_LOADING: Final = re.compile(r"the engine is loading: (?P<stage>.+) (?P<percent>\d{1,3})%")


@dataclass(frozen=True, slots=True)
class LoadingStage:
    """What the engine does before it is ready."""

    name: str
    """`fetching`, `loading weights`, …"""
    fraction: float
    """How much of this stage is done, 0 to 1."""

    @property
    def tenth(self) -> tuple[str, int]:
        """What is worth another line of a log."""
        return self.name, int(self.fraction * 10)


def loading_stage(phase: str) -> LoadingStage | None:
    """Find the stage in a service's phase; None where it is not loading."""
    found = _LOADING.search(phase)
    return found and LoadingStage(found["stage"], min(1.0, int(found["percent"]) / 100))


def missing_words(body: str) -> str:
    """Say what a sidecar that is not ready misses; quote its text where it names nothing."""
    try:
        missing = json.loads(body)["missing"]
        words = "; ".join(missing)
    except (ValueError, KeyError, TypeError):
        words = body[:120]
    return f"not ready: {words}"
