"""How likely a guessed token is the right one: of a lane, and of each request in it."""

from dataclasses import dataclass, field

from paceline_wire.limits import Lane

_TRIALS = 8.0
"""Guesses of the lane that one request's own are weighed against."""
_MEMORY = 0.98
"""What a lane keeps of its past with each new draft."""
_RETRY = 0.002
"""How far a step without a draft moves a lane back to the start: what failed is tried again."""


@dataclass(slots=True)
class Rate:
    """Guesses that held, of those that were tried."""

    held: float = 0.0
    tried: float = 0.0

    def add(self, held: int, tried: int) -> None:
        """Count a draft."""
        self.held += held
        self.tried += tried


@dataclass(slots=True)
class Acceptance:
    """Learns from every draft; a lane is a class of traffic of its own."""

    start: float
    """What is believed of a guess before any was tried."""
    lanes: dict[Lane, Rate] = field(default_factory=dict)
    requests: dict[str, Rate] = field(default_factory=dict)

    def of(self, request_id: str, lane: Lane) -> float:
        """Chance that the next guessed token holds, in [0, 1]."""
        usual = self._lane(lane)
        mine = self.requests.get(request_id)
        if mine is None:
            return usual
        return (mine.held + _TRIALS * usual) / (mine.tried + _TRIALS)

    def learn(self, request_id: str, lane: Lane, *, held: int, drafted: int) -> None:
        """Take in one draft: `held` of `drafted` guesses were right.

        Guesses after the first wrong one were never tried.
        """
        tried = min(held + 1, drafted)
        self.requests.setdefault(request_id, Rate()).add(held, tried)
        rate = self.lanes.setdefault(lane, Rate())
        rate.held *= _MEMORY
        rate.tried *= _MEMORY
        rate.add(held, tried)

    def rest(self) -> None:
        """No draft paid in this step: believe a little less in what was learned."""
        for rate in (*self.lanes.values(), *self.requests.values()):
            rate.held *= 1 - _RETRY
            rate.tried *= 1 - _RETRY

    def forget(self, request_id: str) -> None:
        """The request is gone."""
        self.requests.pop(request_id, None)

    def _lane(self, lane: Lane) -> float:
        rate = self.lanes.get(lane)
        if rate is None:
            return self.start
        return (rate.held + _TRIALS * self.start) / (rate.tried + _TRIALS)
