"""A gateway's policies, which are Envoy's: which pod gets a request."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from balancing.ring import Ring
from balancing.sessions import Turn
from balancing.weights import Report, Reports, Schedule, next_update
from paceline_sidecar.load_report import RATE_SCALE


class Backends(Protocol):
    """The pods, as a gateway sees them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the pods' names, in the order of their numbers."""
        ...

    def active(self, pod: int, now_s: float) -> int:
        """Count the requests that the pod was given and has not ended."""
        ...

    def report(self, pod: int, now_s: float) -> Report | None:
        """Return the report of the pod's newest answer; None before the first."""
        ...


class Policy(Protocol):
    """Chooses a pod."""

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Return the number of the pod that gets the request."""
        ...


@dataclass(slots=True)
class RoundRobin:
    """Every pod in its turn."""

    picked: int
    """The number of the pod that had the last turn."""

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Return the one after the last."""
        del turn
        self.picked += 1
        return self.picked % len(pods.names)


@dataclass(slots=True)
class LeastRequest:
    """The less busy of two that are drawn (`choice_count` 2, Envoy's default)."""

    chance: random.Random

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Compare the requests that each of the two has."""
        one, other = (self.chance.randrange(len(pods.names)) for _ in range(2))
        return other if pods.active(other, turn.at_s) < pods.active(one, turn.at_s) else one


@dataclass(slots=True)
class RingHash:
    """The pod that a key of the request belongs to."""

    key: Callable[[Turn], str]
    _ring: Ring | None = None

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Look the key up; the ring is built once, as the pods stay."""
        if self._ring is None:
            self._ring = Ring(pods.names)
        return self._ring.find(self.key(turn))


@dataclass(slots=True)
class Weighting:
    """The weights of all pods, worked out once for all workers."""

    scale: int = RATE_SCALE
    """The rate that a report gives for one request a second."""
    weights: list[int] = field(default_factory=list)
    _reports: Reports | None = None
    _next_s: float = -math.inf

    def update(self, pods: Backends, now_s: float) -> list[int]:
        """Return the weights, which follow the newest reports once a second."""
        if now_s >= self._next_s:
            self._next_s = next_update(now_s)
            if self._reports is None:
                self._reports = Reports([None] * len(pods.names), self.scale)
            for pod in range(len(pods.names)):
                report = pods.report(pod, now_s)
                if report is not None:
                    self._reports.hear(pod, report)
            self.weights = self._reports.weights(now_s)
        return self.weights


@dataclass(slots=True)
class ByUtilization:
    """In turn, by the weights of the load reports."""

    picked: int
    """The number of picks that the schedule begins after."""
    weighting: Weighting
    _weights: list[int] = field(default_factory=list)
    _schedule: Schedule | None = None

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Pick the next of the schedule, which is made anew when weights have changed."""
        weights = self.weighting.update(pods, turn.at_s)
        if self._schedule is None or weights != self._weights:
            self._weights, self._schedule = weights, Schedule(weights, self.picked)
        return self._schedule.pick()


@dataclass(slots=True)
class Gateway:
    """A policy as every worker thread follows it for itself; a connection's worker is chance."""

    workers: tuple[Policy, ...]
    chance: random.Random

    def choose(self, turn: Turn, pods: Backends) -> int:
        """Let one of the workers choose."""
        return self.chance.choice(self.workers).choose(turn, pods)


ROUND_ROBIN: Final = "round robin"
LEAST_REQUEST: Final = "least request"
BY_SESSION: Final = "hash of the session"
BY_PREFIX: Final = "hash of the prompt's beginning"
BY_UTILIZATION: Final = "weights by utilization"
COARSE: Final = "the same, by whole requests a second"
"""With rates that are told in requests a second: it shows what Envoy's whole weights then cost."""

_MOST_PICKED: Final = 1 << 20
_WORKERS: Final = 8
"""Threads of the gateway, or of all gateways together."""
_Chances = Sequence[random.Random]


def _by_utilization(chances: _Chances, scale: int = RATE_SCALE) -> Iterator[Policy]:
    shared = Weighting(scale)
    return (ByUtilization(chance.randrange(_MOST_PICKED), shared) for chance in chances)


_POLICIES: Final[Mapping[str, Callable[[_Chances], Iterable[Policy]]]] = {
    ROUND_ROBIN: lambda each: (RoundRobin(chance.randrange(_MOST_PICKED)) for chance in each),
    LEAST_REQUEST: lambda each: (LeastRequest(chance) for chance in each),
    BY_SESSION: lambda each: (RingHash(lambda turn: f"session {turn.session}") for _ in each),
    BY_PREFIX: lambda each: (
        RingHash(lambda turn: f"application {turn.application}") for _ in each
    ),
    BY_UTILIZATION: _by_utilization,
    COARSE: lambda each: _by_utilization(each, scale=1),
}
NAMES: Final = tuple(_POLICIES)
REPORTING: Final = frozenset({BY_UTILIZATION, COARSE})
"""Those that read load reports."""


def a_gateway(name: str, seed: int, workers: int = _WORKERS) -> Gateway:
    """Make a gateway of one policy, with nothing heard or picked yet."""
    chances = [random.Random(f"{name} {seed} {worker}") for worker in range(workers)]
    return Gateway(tuple(_POLICIES[name](chances)), random.Random(f"{name} {seed}"))
