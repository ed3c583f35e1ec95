"""Which faults are done when: chosen from a seed. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_LONGEST_QUIET_S = 10.0


class Kind(StrEnum):
    """The faults that are made on purpose."""

    OPERATOR = "operator pod deleted"
    """Any of the replicas, by force: another is made before this one has ended."""
    LEADER = "leader killed"
    """The process of the replica that holds the Lease, by SIGKILL: the Lease is not given back."""
    SIDECAR = "sidecar killed"
    ENGINE = "engine killed"
    API_SERVER = "API server stopped"
    ETCD = "etcd's disk slow"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, before its victim is known."""

    kind: Kind
    quiet_s: float
    """How long nothing is done before it."""
    pick: int
    """Chooses among the pods that are there."""


def faults(seed: int) -> Iterator[Fault]:
    """Yield faults for ever: each round has every kind once, in an order of its own."""
    source = random.Random(seed)
    while True:
        kinds = list(Kind)
        source.shuffle(kinds)
        for kind in kinds:
            yield Fault(kind, source.uniform(0.0, _LONGEST_QUIET_S), source.randrange(1 << 16))
