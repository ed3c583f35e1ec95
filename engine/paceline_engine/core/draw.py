"""Random numbers without state: a request's seed and a position give the draw.

So a draw does not depend on the batch, on a preemption, or on how a prompt was cut.
"""

from hashlib import blake2b

from paceline_engine.core.request import Request

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in (0, 1), the same for the same seed and position."""
    mixed = _mix(_mix(seed & _MASK) + position)
    return ((mixed >> 12) + 0.5) * 2.0**-52


def seed_of(request: Request, salt: bytes) -> int:
    """The request's own seed, or one that only this engine run gives to its id."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    digest = blake2b(request.id.encode(), key=salt, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _mix(value: int) -> int:
    """SplitMix64: each bit of the result depends on each bit of the value."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
