"""Which draft tokens are accepted, and how likely the next one is to be.

A draft token is accepted where the model chooses that very token. The model's choice at each place
is what it would have been without a draft: greedy, or drawn with the request's own number for that
place. So the output is the same token for token, and its distribution is the model's (for a draft
token that is certain, this is the rule of Leviathan et al., 2023: it is accepted with the
probability that the model gives it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_wire.limits import Lane

_TRIALS = 8.0
"""Weight of the prior rate, in trials, when a rate is estimated from few trials."""
_MEMORY = 0.98
"""The part of its past that a lane keeps with each new draft."""
_RETRY = 0.002
"""Share of the evidence that each step without a draft forgets, so that drafts are tried again."""


def verify(draft: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that follow: the accepted draft tokens and the model's token after them.

    `chosen[i]` is the model's choice after the first `i` draft tokens; one more than the draft.
    """
    count = 0
    while count < len(draft) and draft[count] == chosen[count]:
        count += 1
    return tuple(chosen[: count + 1])


@dataclass(slots=True)
class _AcceptanceRate:
    """Draft tokens that were accepted, and all that were tried."""

    accepted: float = 0.0
    tried: float = 0.0

    def add(self, accepted: int, tried: int) -> None:
        self.accepted += accepted
        self.tried += tried

    def shrink(self, factor: float) -> None:
        self.accepted *= factor
        self.tried *= factor

    def weighed_against(self, usual: float) -> float:
        return (self.accepted + _TRIALS * usual) / (self.tried + _TRIALS)


@dataclass(slots=True)
class Acceptance:
    """Learns from every draft how likely draft tokens are accepted: by lane, and by request."""

    start: float
    """The chance that is assumed before any was tried."""
    _lanes: dict[Lane, _AcceptanceRate] = field(default_factory=dict)
    _requests: dict[str, _AcceptanceRate] = field(default_factory=dict)

    def chance(self, request_id: str, lane: Lane) -> float:
        """Return the chance that the next draft token is accepted, in [0, 1]."""
        rate = self._lanes.get(lane)
        usual = self.start if rate is None else rate.weighed_against(self.start)
        own = self._requests.get(request_id)
        return usual if own is None else own.weighed_against(usual)

    def learn(self, request_id: str, lane: Lane, *, accepted: int, drafted: int) -> None:
        """Learn from one draft, of which `accepted` of `drafted` tokens were accepted.

        Those after the first wrong one were never tried.
        """
        tried = min(accepted + 1, drafted)
        self._requests.setdefault(request_id, _AcceptanceRate()).add(accepted, tried)
        rate = self._lanes.setdefault(lane, _AcceptanceRate())
        rate.shrink(_MEMORY)
        rate.add(accepted, tried)

    def rest(self) -> None:
        """Trust a little less in what was learned: no draft paid in this step."""
        for rate in (*self._lanes.values(), *self._requests.values()):
            rate.shrink(1 - _RETRY)

    def forget(self, request_id: str) -> None:
        """Drop what was learned of a request that is gone."""
        self._requests.pop(request_id, None)
