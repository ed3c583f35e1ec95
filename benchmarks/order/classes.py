"""Targets by prompt length, simulated: PYTHONPATH=... python -m order.classes [--seeds 5].

Short prompts beside long ones, judged by a target for each class of prompt. Served with one flat
target (that of the short ones, or that of the long ones) and with the classes themselves, in the
order of arrival, in that of the deadlines of first tokens, and short prompts first. Who has waited
for 0.7 of the target that it is served by is refused, as in the tuning report.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from order.cases import CASES, Case
from order.play import Floats, capacity_rps, engine_of, pace_of, rows_of
from paceline_sidecar.admission.turns import turn_at
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK
from tune_report.episode import DRAIN_S, SHED_AT

RESULTS = Path(__file__).parents[1] / "results" / "order"
LOADS = (0.6, 0.95, 1.2)
DURATION_S, _SLICE_S = 240.0, 1.0
Rule = Literal["arrival", "deadline", "short first"]


@dataclass(frozen=True, slots=True)
class Classes:
    """First-token targets by prompt length."""

    up_to: int
    """Prompt tokens of the short class."""
    short_s: float
    long_s: float

    def targets_s(self, requests: Requests) -> Floats:
        """Return each request's target."""
        return np.where(requests.prompt <= self.up_to, self.short_s, self.long_s)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve them."""

    name: str
    rule: Rule
    flat_s: float | None = None
    """One target for all; None serves by the classes."""


class Figures(msgspec.Struct, frozen=True):
    """One run, judged by the classes."""

    good_rps: float
    short_met: float
    """Share of the short prompts whose first token came within their class's target."""
    long_met: float
    short_p99_ms: float
    """Time to first token of the short prompts that got one."""
    long_p99_ms: float


class Row(msgspec.Struct, frozen=True):
    """One run."""

    study: str
    unit_rps: float
    load: float
    way: str
    seed: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Study:
    """A case and the classes of its prompts."""

    case: Case
    classes: Classes

    @property
    def name(self) -> str:
        """Say what is served, and what is promised."""
        own = self.classes
        return (
            f"{self.case.name}: {own.short_s:g} s up to {own.up_to} prompt tokens,"
            f" {own.long_s:g} s beyond"
        )

    @property
    def ways(self) -> tuple[Way, ...]:
        """List what is compared."""
        return (
            Way("one target, that of the short", "arrival", self.classes.short_s),
            Way("one target, that of the long", "arrival", self.classes.long_s),
            Way("one target, that of the long; short first", "short first", self.classes.long_s),
            Way("classes, by arrival", "arrival"),
            Way("classes, short first", "short first"),
            Way("classes, by deadline", "deadline"),
        )


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


STUDIES = (
    Study(_case("long prompts beside conversation, H100"), Classes(4200, 0.5, 8.0)),
    Study(_case("long prompts beside conversation, H100"), Classes(4200, 1.5, 8.0)),
    Study(_case("heavy tail, H100"), Classes(4200, 0.5, 5.0)),
    Study(_case("conversation, code and reasoning, H100"), Classes(1000, 0.5, 3.0)),
)


def play(study: Study, way: Way, rps: float, seed: int, duration_s: float) -> Figures:
    """Serve one load in one way. Deterministic in its arguments."""
    case = study.case
    requests, _ = case.draw(seed, rps, duration_s)
    wanted_s = study.classes.targets_s(requests)
    served_by_s = wanted_s if way.flat_s is None else np.full(len(requests), way.flat_s)
    engine = engine_of(case, rows_of(requests, slice(0, 0), np.zeros(0), np.zeros(0)), seed)
    first = 0
    for end_s in np.arange(_SLICE_S, duration_s + _SLICE_S, _SLICE_S):
        last = int(np.searchsorted(requests.arrival_s, end_s))
        rows = slice(first, last)
        turns_s = _turns_s(way.rule, engine, requests, rows, served_by_s)
        engine.offer(rows_of(requests, rows, turns_s, SHED_AT * served_by_s[rows]))
        engine.run_until(float(end_s))
        first = last
    engine.run_until(duration_s + DRAIN_S)
    return _figures(study, engine, requests, wanted_s, duration_s)


def _turns_s(
    rule: Rule, engine: SimulatedEngine, requests: Requests, rows: slice, target_s: Floats
) -> Floats:
    arrived_s = requests.arrival_s[rows]
    if rule == "arrival":
        return arrived_s
    if rule == "deadline":
        return np.asarray(arrived_s + target_s[rows], np.float64)
    rate = pace_of(engine).tokens_per_s
    each = zip(arrived_s, requests.prompt[rows], target_s[rows], strict=True)
    return np.array(
        [
            turn_at(float(at), tokens=int(tokens), rate=rate, patience_s=float(within))
            for at, tokens, within in each
        ]
    )


def _figures(
    study: Study, engine: SimulatedEngine, requests: Requests, wanted_s: Floats, duration_s: float
) -> Figures:
    came = engine.outcome == OK
    ttft_ms = np.where(came, engine.ttft_ms, np.inf)
    is_met, is_short = ttft_ms <= wanted_s * 1e3, requests.prompt <= study.classes.up_to
    return Figures(
        good_rps=float(is_met.sum()) / duration_s,
        short_met=float(np.mean(is_met[is_short])),
        long_met=float(np.mean(is_met[~is_short])),
        short_p99_ms=float(np.quantile(ttft_ms[is_short & came], 0.99)),
        long_p99_ms=float(np.quantile(ttft_ms[~is_short & came], 0.99)),
    )


def main() -> None:
    """Measure, and write the page and the figures."""
    parser = argparse.ArgumentParser(prog="order.classes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the page of kept figures anew")
    options = parser.parse_args()
    kept = options.out / "classes.json"
    if not options.page:
        options.out.mkdir(parents=True, exist_ok=True)
        rows = _rows(range(1, options.seeds + 1))
        lines = ",\n".join(msgspec.json.encode(row).decode() for row in rows)
        kept.write_text(f"[\n{lines}\n]\n")
    found = msgspec.json.decode(kept.read_bytes(), type=list[Row])
    (options.out / "classes.md").write_text(page(found))


def _rows(seeds: Sequence[int]) -> Iterator[Row]:
    units: dict[str, float] = {}
    for study in STUDIES:
        if study.case.name not in units:
            units[study.case.name] = capacity_rps(study.case)
        unit_rps = units[study.case.name]
        print(f"{study.name}: a load of 1.0 is {unit_rps:g} requests a second", flush=True)
        for load in LOADS:
            for way in study.ways:
                for seed in seeds:
                    figures = play(study, way, load * unit_rps, seed, DURATION_S)
                    yield Row(study.name, unit_rps, load, way.name, seed, figures)


def page(rows: Sequence[Row]) -> str:
    """Write Markdown: medians over seeds."""
    num_seeds = len({row.seed for row in rows})
    intro = (
        "# First-token targets by prompt length, simulated\n\n"
        "`PYTHONPATH=benchmarks:engine:kernels:operator:sidecar:sim python -m order.classes` wrote"
        f" this page: {DURATION_S:g} simulated seconds, medians over {num_seeds} seeds, all ways"
        " on the same requests.\n"
        "Every way is judged by the targets of the classes. A request is good when its first token"
        " came within the target for its prompt. Who waited for 0.7 of the target that it was"
        " served by was refused, and missed. p99s are of the first tokens that came.\n"
        "`classes, by deadline` is what `sla.ttft.byPromptTokens` does with `admission.order:"
        " Fifo` ([why](../../../docs/decisions/0071-first-tokens-have-targets-by-prompt-length.md"
        ")).\n"
    )
    header = (
        "| Load | Way | good requests/s | short in time | long in time"
        " | short TTFT p99 | long TTFT p99 |"
    )
    lines = [intro]
    for name in dict.fromkeys(row.study for row in rows):
        mine = [row for row in rows if row.study == name]
        lines += [f"## {name}\n", f"A load of 1.0 is {mine[0].unit_rps:g} requests a second.\n"]
        lines += [header, "|---|---|---|---|---|---|---|"]
        for load, way in dict.fromkeys((row.load, row.way) for row in mine):
            runs = [row.figures for row in mine if (row.load, row.way) == (load, way)]
            lines.append(_line(load, way, runs))
        lines.append("")
    return "\n".join(lines)


def _line(load: float, way: str, runs: Sequence[Figures]) -> str:
    def middle(read: Callable[[Figures], float]) -> float:
        return statistics.median(read(run) for run in runs)

    return (
        f"| {load:g} | {way} | {middle(lambda f: f.good_rps):.2f}"
        f" | {middle(lambda f: f.short_met):.1%} | {middle(lambda f: f.long_met):.1%}"
        f" | {middle(lambda f: f.short_p99_ms):,.0f} ms"
        f" | {middle(lambda f: f.long_p99_ms):,.0f} ms |"
    )


if __name__ == "__main__":
    main()
