"""Which shard a service belongs to, and which shard another replica should give away. Pure."""

import zlib
from collections import Counter
from collections.abc import Sequence


def shard_of(uid: str, num_shards: int) -> int:
    """Give the number of the shard that a service belongs to, as long as it lives."""
    return zlib.crc32(uid.encode()) % num_shards


def to_ask_for(holders: Sequence[str], me: str) -> int | None:
    """Name a shard that its holder should give to `me`; None where all have their share.

    `holders` has who holds each shard, an empty name where nobody does.
    """
    held = Counter(filter(None, holders))
    most = max(held, key=lambda one: (held[one], one), default=me)
    if not may_give(holders, most, me):
        return None
    theirs = [number for number, holder in enumerate(holders) if holder == most]
    return theirs[zlib.crc32(me.encode()) % len(theirs)]  # two that ask, seldom ask for the same


def may_give(holders: Sequence[str], giver: str, asker: str) -> bool:
    """Tell whether one shard less still leaves the giver as many as the asker."""
    held = Counter(holders)
    return held[giver] - held[asker] > 1
