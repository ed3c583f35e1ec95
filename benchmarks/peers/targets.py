"""What is wanted of Paceline beside each peer, as data, and whether runs have it. Pure.

A ratio is ours over theirs in one repeat, which has the same prompts for all and whose noise both
saw; the median over the repeats is judged.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from peers.rows import ROWS
from serving_workload import Figures

Figure = Literal["output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"]
Verdict = Literal["met", "missed", "not run"]
Runs = Mapping[str, Sequence[Figures]]
"""By a row's name: one entry for each repeat."""

RATE: Figure = "output_tokens_per_s"
OURS_BESIDE = {row.name: row.beside for row in ROWS if row.beside} | {"paceline": "paceline-lookup"}
"""Our row that a row is compared with. The last entry shows what lookup brings to us."""
WITHOUT_LOOKUP = {row.name: row.name.removesuffix("-lookup") for row in ROWS if row.lookup}
"""For each row with lookup, the row of the same engine without it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one ratio: a rate has at least so much of the peer's, a time less than that."""

    peer: str
    """The name of its row."""
    figure: Figure
    bound: float

    def verdict(self, ratio: float | None) -> Verdict:
        """Judge a ratio; NaN never meets anything."""
        if ratio is None:
            return "not run"
        is_met = ratio >= self.bound if self.figure == RATE else ratio < self.bound
        return "met" if is_met else "missed"


@dataclass(frozen=True, slots=True)
class Judged:
    """A target beside what was measured."""

    target: Target
    ratio: float | None
    """The median over the repeats; None where one of the two was not run."""

    @property
    def verdict(self) -> Verdict:
        """Return whether the target is met."""
        return self.target.verdict(self.ratio)


_LATENCIES: tuple[Figure, ...] = ("ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
TARGETS = (
    *(Target(peer, RATE, 1.2) for peer in ("vllm", "openvino", "vllm-lookup", "openvino-lookup")),
    *(Target(peer, figure, 1.0) for peer in ("vllm", "openvino") for figure in _LATENCIES),
    *(Target(peer, RATE, 1.0) for peer in ("vllm-float32", "openvino-float32")),
    Target("paceline", RATE, 1.35),
    Target("openvino-int8", RATE, 1.1),
    *(Target(peer, RATE, 2.0) for peer in ("llama.cpp-q8_0", "llama.cpp-q4_k")),
)


def ratios(runs: Runs, peer: str, figure: Figure) -> tuple[float, ...]:
    """Return ours over theirs for each repeat; empty where one of the two was not run."""
    return _ratios(runs, OURS_BESIDE[peer], peer, figure)


def lookup_gains(runs: Runs) -> dict[str, tuple[float, ...]]:
    """Return for each row with lookup its rate over that without, for each repeat."""
    found = {name: _ratios(runs, name, plain, RATE) for name, plain in WITHOUT_LOOKUP.items()}
    return {name: gains for name, gains in found.items() if gains}


def _ratios(runs: Runs, over: str, under: str, figure: Figure) -> tuple[float, ...]:
    if not runs.get(over) or not runs.get(under):
        return ()
    pairs = zip(runs[over], runs[under], strict=True)
    return tuple(getattr(a, figure) / getattr(b, figure) for a, b in pairs)


def judged(runs: Runs, targets: Sequence[Target] = TARGETS) -> tuple[Judged, ...]:
    """Return every target beside the median of its ratios."""
    values = ((target, ratios(runs, target.peer, target.figure)) for target in targets)
    return tuple(
        Judged(target, statistics.median(found) if found else None) for target, found in values
    )
