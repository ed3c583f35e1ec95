"""A hash ring, as Envoy's `ring_hash` builds it: every pod at many places, a key at the next."""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_LEAST_SIZE: Final = 1024
"""Envoy's default `minimum_ring_size`, shared among the pods."""


class Ring:
    """Pods by hash."""

    def __init__(self, names: Sequence[str], least_size: int = _LEAST_SIZE) -> None:
        """Put each pod on the ring equally often, at least `least_size` places in all."""
        each = math.ceil(least_size / len(names))
        places = sorted(
            (_hash(f"{name}_{number}"), pod)
            for pod, name in enumerate(names)
            for number in range(each)
        )
        self._hashes = [at for at, _ in places]
        self._pods = [pod for _, pod in places]

    def find(self, key: str) -> int:
        """Return the number of the pod that the key belongs to."""
        return self._pods[bisect_left(self._hashes, _hash(key)) % len(self._pods)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
