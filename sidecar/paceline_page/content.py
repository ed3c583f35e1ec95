"""Everything that the page shows at one moment. What is not known is None or empty."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

_MAX_BARS = 16


@dataclass(frozen=True, slots=True)
class State:
    """Whether the service answers."""

    kind: Literal["loading", "serving", "down"]
    text: str
    fraction: float | None = None
    """How much of a stage of loading is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency beside its target, now and over time."""

    name: str
    target_ms: float | None
    seen_ms: float | None
    series: tuple[float | None, ...]
    """One value of each of the history's times."""
    client_ms: float | None = None
    """What a client measured itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The pod's limits, and what the tuner makes of them."""

    batch_size: int | None = None
    token_budget: int | None = None
    step_target_ms: float | None = None
    mode: str = ""
    phase: str = ""
    binding: str = ""
    verdict: str = ""
    reason: str = ""
    lease_s: float | None = None
    """How long the limits hold without another word of the operator's."""
    tuner: str = ""
    """The tuner's phase and what bounds the limits, on a pod's page; empty without a lease."""
    tuner_age_s: float | None = None
    """How long ago that was."""
    error: str = ""
    """Why telemetry or a change failed."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the pod does now."""

    running: int | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None
    output_tps: float | None = None
    prompt_tps: float | None = None
    finished_rps: float | None = None
    """Requests that were served to their end, a second, over the last minute."""
    kv_share: float | None = None
    """Of its KV blocks, how many are held."""
    cost_per_million_output: float | None = None
    """What a million output tokens cost; None where no price is declared."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one moment."""

    at: float
    """Unix seconds."""
    latencies: dict[str, float | None]
    """By name; milliseconds at the quantile that the objective asks for."""
    batch_size: int | None
    token_budget: int | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class History:
    """The points but for their latencies, by column: names are sent once."""

    times: tuple[float, ...]
    batch_sizes: tuple[int | None, ...]
    token_budgets: tuple[int | None, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]

    @classmethod
    def of(cls, points: Sequence[Point]) -> Self:
        """Turn the points, oldest first, into columns."""
        return cls(
            times=tuple(point.at for point in points),
            batch_sizes=tuple(point.batch_size for point in points),
            token_budgets=tuple(point.token_budget for point in points),
            running=tuple(point.running for point in points),
            waiting=tuple(point.waiting for point in points),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the limits."""

    at: float
    """Unix seconds."""
    from_batch_size: int
    from_token_budget: int
    to_batch_size: int
    to_token_budget: int
    reason: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Steps of the last minute that decoded so many sequences."""

    least: int
    most: int
    steps: int


@dataclass(frozen=True, slots=True)
class Help:
    """One thing that would help."""

    lever: str
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """The page at one moment. Text is text: the page never reads it as HTML."""

    at: float
    """Unix seconds of the newest measurement; 0 before the first."""
    name: str
    about: str
    """The model, and where it is served."""
    state: State
    quantile: str
    """Such as `p99`."""
    objective: float
    window_s: float
    attainment: float | None
    samples: int
    latencies: tuple[Latency, ...]
    limits: Limits
    work: Work
    history: History
    changes: tuple[Change, ...]
    """Newest first."""
    histogram: tuple[Bar, ...]
    advice: tuple[Help, ...]
    advice_note: str
    """What the advice lacks, or why there is none."""
    events: tuple[str, ...]
    banner: str = ""


def histogram(steps: Iterable[tuple[int, int]]) -> tuple[Bar, ...]:
    """Count steps by decoding sequences, in at most sixteen bars of equal width.

    A step is its decoding sequences, and how many steps it stands for.
    """
    counts: Counter[int] = Counter()
    for decode, weight in steps:
        counts[decode] += weight
    if not counts:
        return ()
    width = max(counts) // _MAX_BARS + 1
    return tuple(
        Bar(least, least + width - 1, sum(counts[each] for each in range(least, least + width)))
        for least in range(0, max(counts) + 1, width)
    )
