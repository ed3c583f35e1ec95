"""What is concluded about one aspect of a service."""

from dataclasses import dataclass

from paceline_tuner.condition import Truth


@dataclass(frozen=True, slots=True)
class Judgement:
    """One condition before it has a history. Numbers belong into fields, not into the message."""

    type: str
    status: Truth
    reason: str
    message: str
