"""The whole evaluation: capacities, the grid, every arm on every workload, the searches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tune_report.arms.table import DEFAULTS, RULES, named
from tune_report.jobs import Bench, Play
from tune_report.long_findings import LongFindings, LongRun
from tune_report.oracle import GridCapacity, Method, Pair, Search, best, grid
from tune_report.schedule import Schedule, ScheduleSearch
from tune_report.score import EpisodeScore
from tune_report.workloads import ReportWorkload

_FINALISTS = 10
"""Pairs per workload that the first seed sends on to the others."""
OURS = "ours"
SCHEDULED = "best schedule"
SCHEDULED_SEEDS = 1
"""For how many seeds the best schedule is searched: each search plays four hundred episodes."""
ABLATIONS = (
    "ours, no L0",
    "ours, no shedding",
    "ours, no q_r",
    "ours, no trim",
    "ours, no dead band",
    "ours, no rate limit",
)
ABLATED = ("steady 0.9", "steady 1.15", "step", "burst CV 2.5", "mix shift", "hot neighbour")
"""Workloads of the first setting that ablations run."""
ABLATED_QUICKLY = ("step",)


@dataclass(slots=True)
class Results:
    """All scores, and the oracle's choices. Arms have the page's names."""

    workloads: tuple[ReportWorkload, ...]
    seeds: tuple[int, ...]
    units: dict[str, float]
    """Requests per second that a load of 1.0 means, by workload."""
    scores: dict[tuple[str, str], list[EpisodeScore]] = field(default_factory=dict)
    """By workload and arm, in the order of the seeds."""
    oracle: dict[str, Pair] = field(default_factory=dict)
    """The best pair by workload."""
    single: dict[str, Pair] = field(default_factory=dict)
    """The best single pair by setting."""
    found: dict[tuple[str, str], Pair] = field(default_factory=dict)
    """By workload and search."""
    schedules: dict[str, list[Schedule]] = field(default_factory=dict)
    """The best schedules of each changing workload, by its name: one for each searched seed."""
    findings: dict[str, LongFindings] = field(default_factory=dict)
    """The findings of each workload with long prompts, by its name, on the first seed."""

    def has(self, workload: str, arm: str) -> bool:
        """This arm ran on this workload."""
        return (workload, arm) in self.scores


def evaluate(
    bench: Bench,
    workloads: Sequence[ReportWorkload],
    seeds: tuple[int, ...],
    trace: Path | None,
    *,
    with_ablations: bool = True,
) -> Results:
    """Run what is missing and collect all results."""
    results = Results(tuple(workloads), seeds, _units(bench, workloads, trace))
    player = _Player(bench, results, trace)
    _fixed(player)
    _schedules(player)
    _searches(player)
    player.play([(w, arm) for w in workloads for arm in (*DEFAULTS, *RULES)], "rules")
    player.play([(w, OURS) for w in workloads], "ours")
    if not with_ablations:
        return results
    first = workloads[0].setting.name
    names = ABLATED if len(seeds) > 1 else ABLATED_QUICKLY
    ablated = [w for w in workloads if w.name.removeprefix(f"{first}: ") in names]
    player.play([(w, arm) for w in ablated for arm in ABLATIONS], "ablations")
    return results


def evaluate_briefly(
    bench: Bench, workloads: Sequence[ReportWorkload], seeds: tuple[int, ...], trace: Path | None
) -> Results:
    """Run the grid, schedules and the product, without other rules, searches and ablations."""
    results = Results(tuple(workloads), seeds, _units(bench, workloads, trace))
    player = _Player(bench, results, trace)
    _fixed(player)
    _schedules(player)
    player.play([(w, OURS) for w in workloads], "ours")
    jobs = [LongRun(w.name, seeds[0], results.units[w.name], trace) for w in workloads]
    found = bench.all(jobs, LongFindings, "findings")
    results.findings = {w.name: each for w, each in zip(workloads, found, strict=True)}
    return results


def _units(
    bench: Bench, workloads: Sequence[ReportWorkload], trace: Path | None
) -> dict[str, float]:
    """Measure capacity once for each setting and mix."""
    owners = {(w.setting.name, w.mix.name): w.name for w in workloads}
    jobs = [GridCapacity(name, trace) for name in owners.values()]
    rates = bench.all(jobs, float, "capacities")
    by_mix = dict(zip(owners, rates, strict=True))
    return {w.name: by_mix[w.setting.name, w.mix.name] for w in workloads}


@dataclass(slots=True)
class _Player:
    """Plays arms on workloads and keeps the scores."""

    bench: Bench
    results: Results
    trace: Path | None

    def play(self, pairs: Sequence[tuple[ReportWorkload, str]], title: str) -> None:
        """Every seed of each workload and arm."""
        seeds = self.results.seeds
        scores = self.scores([(w, arm, seed) for w, arm in pairs for seed in seeds], title)
        for index, (workload, arm) in enumerate(pairs):
            mine = scores[index * len(seeds) : (index + 1) * len(seeds)]
            self.results.scores[workload.name, arm] = mine

    def scores(
        self, wanted: Sequence[tuple[ReportWorkload, str, int]], title: str
    ) -> list[EpisodeScore]:
        """Play episodes, without keeping them by name."""
        units = self.results.units
        jobs = [Play(w.name, arm, seed, units[w.name], self.trace) for w, arm, seed in wanted]
        return self.bench.all(jobs, EpisodeScore, title)


def _fixed(player: _Player) -> None:
    """The grid on the first seed, its best on all; then the best pair of each setting."""
    results = player.results
    first = results.seeds[0]
    asked = [(w, pair) for w in results.workloads for pair in grid(w.setting)]
    scores = player.scores([(w, static_name(pair), first) for w, pair in asked], "grid")
    table: dict[str, dict[Pair, EpisodeScore]] = {w.name: {} for w in results.workloads}
    for (workload, pair), got in zip(asked, scores, strict=True):
        table[workload.name][pair] = got
    for name in dict.fromkeys(w.setting.name for w in results.workloads):
        names = [w.name for w in results.workloads if w.setting.name == name]
        results.single[name] = _single([table[n] for n in names])
    candidates = {}
    for workload in results.workloads:
        row = table[workload.name]
        finalists = sorted(row, key=lambda pair: -row[pair].good)[:_FINALISTS]
        candidates[workload.name] = list(
            dict.fromkeys((*finalists, results.single[workload.setting.name]))
        )
    _choose(player, candidates)


def _choose(player: _Player, candidates: dict[str, list[Pair]]) -> None:
    """Play candidates on all seeds; the best is the oracle."""
    results, seeds = player.results, player.results.seeds
    asked = [
        (w, static_name(pair), seed)
        for w in results.workloads
        for pair in candidates[w.name]
        for seed in seeds
    ]
    scores = iter(player.scores(asked, "finalists"))
    for workload in results.workloads:
        name = workload.name
        mine = {pair: [next(scores) for _ in seeds] for pair in candidates[name]}
        results.oracle[name] = best(mine)
        results.scores[name, "oracle"] = mine[results.oracle[name]]
        results.scores[name, "best single static"] = mine[results.single[workload.setting.name]]


def _single(tables: Sequence[dict[Pair, EpisodeScore]]) -> Pair:
    """The pair with the best mean share of each workload's best."""
    tops = [max(1, *(score.good for score in table.values())) for table in tables]

    def share(pair: Pair) -> float:
        return sum(table[pair].good / top for table, top in zip(tables, tops, strict=True))

    return max(tables[0], key=share)


def _schedules(player: _Player) -> None:
    """Search for the best schedule of each workload that is not steady, seed by seed."""
    results = player.results
    seeds = results.seeds[:SCHEDULED_SEEDS]
    chosen = [w for w in results.workloads if not w.is_steady]
    jobs = [
        ScheduleSearch(w.name, results.oracle[w.name], seed, results.units[w.name], player.trace)
        for w in chosen
        for seed in seeds
    ]
    found = iter(player.bench.all(jobs, Schedule, "schedules"))
    for workload in chosen:
        results.schedules[workload.name] = [next(found) for _ in seeds]


def _searches(player: _Player) -> None:
    """Each search once per workload, and what it found on all seeds."""
    results = player.results
    methods: tuple[Method, ...] = ("random", "optuna")
    jobs = [
        Search(w.name, method, results.units[w.name], player.trace)
        for w in results.workloads
        for method in methods
    ]
    found = iter(player.bench.all(jobs, tuple[int, int], "searches"))
    for workload in results.workloads:
        for chosen in methods:
            results.found[workload.name, chosen] = next(found)
    asked = list(results.found.items())
    by_name = {w.name: w for w in results.workloads}
    scores = iter(
        player.scores(
            [
                (by_name[name], static_name(pair), seed)
                for (name, _), pair in asked
                for seed in results.seeds
            ],
            "what searches found",
        )
    )
    titles = {"random": "random search", "optuna": "Optuna"}
    for (name, search), _ in asked:
        results.scores[name, titles[search]] = [next(scores) for _ in results.seeds]


def static_name(pair: Pair) -> str:
    """Name an arm of fixed limits."""
    return f"static {pair[0]}/{pair[1]}"


def check_names() -> None:
    """Fail early on an arm, or on a guard to switch off, that does not exist."""
    for name in (*DEFAULTS, *RULES, OURS, *ABLATIONS):
        with named(name).patches():
            pass
