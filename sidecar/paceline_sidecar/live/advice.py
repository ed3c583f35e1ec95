"""What would help this pod, judged from its own figures alone: no step model, no forecast."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline_page.content import Help

_NEARLY_FULL = 0.95  # as the alert PacelineKVSaturated
_QUEUE_FULL = 0.8  # as PacelineQueueNearRejection
_OFTEN = 0.1  # as PacelineKVPressure
_LARGE = 0.5  # as PacelinePaddingHigh
_FEW_HITS = 0.1
_WORTH_TOKENS = 1000
"""Below so many prompt tokens a minute, a prefix cache brings nothing that counts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The load of a pod at one moment, and what it did in about the last minute."""

    running: int
    waiting: int
    people_waiting: int
    """How many of these are of the interactive lane: the batch lane is there to wait."""
    kv_share: float | None
    """Of its KV blocks, how many running sequences hold; 0 to 1."""
    batch_size: int
    """The limit in force."""
    queued: int
    """Admitted requests without a first token."""
    queue_places: int
    ended: int
    """Requests that ended within the last minute."""
    preempted: int
    """Sequences that lost their KV blocks, without batch requests that gave way."""
    prompt_tokens: int
    output_tokens: int
    padding_tokens: int
    looked_up: int
    """Prompt tokens that were looked up in the prefix cache."""
    found: int
    """How many of these were found there."""
    is_late: bool
    """Whether a latency is above its target."""

    @property
    def is_kv_full(self) -> bool:
        """Whether running sequences hold nearly every KV block."""
        return self.kv_share is not None and self.kv_share > _NEARLY_FULL

    @property
    def is_batch_full(self) -> bool:
        """Whether as many sequences run as the limit lets."""
        return self.running >= self.batch_size


def bound(seen: Snapshot) -> str:
    """Name what holds the batch where it is; empty where these figures do not tell."""
    if not seen.waiting:
        return "load"
    if seen.is_kv_full:
        return "KV memory"
    return "batch size" if seen.is_batch_full else ""


def advise(seen: Snapshot) -> tuple[Help, ...]:
    """Everything that would help, the most pressing first; empty where nothing stands out."""
    rules = (_queue, _kv_memory, _preemptions, _batch_size, _padding, _prefixes)
    return tuple(found for rule in rules for found in rule(seen))


def _queue(seen: Snapshot) -> Iterator[Help]:
    if seen.queued > _QUEUE_FULL * seen.queue_places:
        yield Help(
            "replicas",
            f"{seen.queued} of the {seen.queue_places} places of the queue are taken; when all are,"
            " the next requests are refused with 429.",
        )


def _kv_memory(seen: Snapshot) -> Iterator[Help]:
    if seen.people_waiting and seen.is_kv_full:
        yield Help(
            "engine.kvCacheMemory, engine.kvCacheDtype, or replicas",
            f"{seen.running} running sequences hold {seen.kv_share:.0%} of the KV memory, and"
            f" {seen.people_waiting} interactive requests wait for it."
            f" The limit would let {seen.batch_size} run.",
        )


def _preemptions(seen: Snapshot) -> Iterator[Help]:
    if seen.preempted > _OFTEN * max(1, seen.ended):
        yield Help(
            "a lower tuning.batchSize.max, engine.kvCacheMemory, or engine.swapMemory",
            f"In the last minute {seen.preempted} sequences lost their KV blocks to others, while"
            f" {seen.ended} requests ended. What they had computed is computed again, or waits"
            " in host memory.",
        )


def _batch_size(seen: Snapshot) -> Iterator[Help]:
    if seen.people_waiting and seen.is_batch_full and not seen.is_kv_full:
        yield Help(
            "replicas, or tuning.batchSize.max",
            f"{seen.running} sequences run, as many as the limit lets, and {seen.people_waiting}"
            " interactive requests wait. Where the SLA leaves room, the tuner raises the limit as"
            " far as tuning.batchSize and engine.capacity let it; otherwise only more pods help.",
        )


def _padding(seen: Snapshot) -> Iterator[Help]:
    computed = seen.padding_tokens + seen.prompt_tokens + seen.output_tokens
    if seen.padding_tokens > _LARGE * computed:
        yield Help(
            "engine.scheduling: Continuous",
            f"{seen.padding_tokens / computed:.0%} of the tokens computed in the last minute only"
            " filled batches up. Continuous batching pads nothing.",
        )


def _prefixes(seen: Snapshot) -> Iterator[Help]:
    """Prompts that are computed again count where they cost somebody time."""
    is_heavy = seen.prompt_tokens > max(_WORTH_TOKENS, seen.output_tokens)
    if not is_heavy or not (seen.is_late or seen.people_waiting):
        return
    if seen.found < _FEW_HITS * seen.looked_up:
        yield Help(
            "prompts that begin alike, and engine.prefixCaching",
            f"In the last minute {seen.prompt_tokens:,} prompt tokens were computed, and"
            f" {seen.found / seen.looked_up:.0%} of those looked up were found in the prefix cache."
            " Where it is on, as by default, put what changes from request to request, such as a"
            " date, at the end of the prompt.",
        )
