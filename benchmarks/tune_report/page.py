"""The page: what was compared, each figure with its target, and tables. Markdown."""

import statistics
from collections.abc import Callable, Sequence
from itertools import groupby

from tune_report.arms.table import DEFAULTS, RULES
from tune_report.noise_floor import noise_floor
from tune_report.oracle import TRIALS
from tune_report.run import ABLATIONS, OURS, SCHEDULED, SCHEDULED_SEEDS, Results
from tune_report.schedule import SCHEDULE_TRIALS, Schedule
from tune_report.score import EpisodeScore
from tune_report.settings import CPU_ITL
from tune_report.targets import (
    ORACLE,
    SINGLE,
    TargetResult,
    capacity_rps,
    figures,
    median_interval,
    over_schedule,
    ratios,
)
from tune_report.workloads import ReportWorkload

SEARCHES = ("random search", "Optuna")
COMPARED = (SINGLE, *SEARCHES, *DEFAULTS, *RULES, OURS)
_INTRODUCTION = """\
# The tuner, measured

Written by `make tune-report`. Every figure is computed from simulated episodes; none is typed in.

The engine is simulated step by step, with continuous batching (`sim/paceline_sim/`): step times
come from tables with stairs of tiles, non-linear attention, noise and spikes, which the tuner's own
step-time model cannot express. The operator's `TuningLoop` ticks every 5 s through the runtime API,
and the engine's own pacer and fit run in each step. Every arm serves the same requests, starts
cold, and drops requests at the head of the queue that have waited for 70 % of the TTFT target. A
dropped, refused or unfinished request is a miss, and the first minute counts. A load of 1.0 is the
highest that the best fixed limits of the grid serve at 99 % attainment. [The tuner](tuner.md)
explains its terms.

"""
_METHOD = """\
## How it is counted

* A request is **good** if it ended with TTFT and mean TPOT within the SLA, and at most one gap in a
  hundred was over the ITL target (one gap in a request with fewer). **Goodput** is good requests a
  second.
* **Attainment**: the smallest of three shares: requests within TTFT, requests within TPOT, and gaps
  within ITL.
* **Oracle**: of a grid of max batch sizes and token budgets, the pair with the most good requests
  over all seeds of that workload, in hindsight. The first seed plays the whole grid; its best ten
  pairs play the other seeds. **Best single static**: the pair that is best on average over all
  workloads of a setting.
* **Best schedule**: of the first {scheduled} seed(s), the best of {schedule_trials} trials of pairs
  that may change each minute, with the requests, the disturbances and the noise of that seed known:
  a search by coordinates from the oracle's pair, each trial played from the state that the minute
  before left (`benchmarks/tune_report/schedule.py`). A search ends where 99.9 % are good.
* **Random search, Optuna**: the best of {trials} trials on a seed of its own, once per workload.
* **Medians** are over {seeds} seed(s); brackets hold the 95 % interval of their bootstrap.
* **A100 published**: its table of step times is a published measurement, not a model of tiles
  (`sim/paceline_sim/published.py`). [sim-to-real](sim-to-real.md) says how far a simulation is from
  the real engine, and [benchmarks/results](../benchmarks/results/tuning/vidur.md) how near its
  queue is to another simulator's.
* **Time from cold** ("to final"): until each limit stays within a tenth of its median of the last
  minute. It counts the max batch size even where fewer sequences run than it allows, which then
  limits nothing; "to final pace" leaves it out.
* **Model error**: the mean absolute relative error of predicted step times. Chance sets a floor:
  who knows the simulated device's table and the step before, but not what is drawn anew, still
  misses the CPU's steps by {cpu_floor:.1%} (`benchmarks/tune_report/noise_floor.py`). Where 1.15
  times the floor is more than 5 %, that is what is asked for.
* P-PAS sees how many prompts the step before had. gradient2 and Vegas follow milliseconds per
  token. PI moves only the token budget; it keeps the default's batch size.

"""


def page(results: Results, images: str, note: str = "") -> str:
    """Write the page; `images` is the folder of its plots, seen from the page."""
    found = figures(results)
    parts = [
        _INTRODUCTION,
        note,
        _targets(found),
        _plot(
            "Goodput of each arm over the oracle's: median and worst workload",
            f"{images}/summary.png",
        ),
        _goodput_table(results),
        _plot("Goodput over the oracle's, by workload and arm", f"{images}/goodput.png"),
        _capacity_table(results),
        _plot("Attainment over load: the tuner, fixed limits and AIMD", f"{images}/sweep.png"),
        _attainment_table(results),
        _plot("The tuner's limits over time, beside what runs and waits", f"{images}/limits.png"),
        _control_table(results),
        _ablation_table(results),
        _METHOD.format(
            trials=TRIALS,
            schedule_trials=SCHEDULE_TRIALS,
            scheduled=min(SCHEDULED_SEEDS, len(results.seeds)),
            seeds=len(results.seeds),
            cpu_floor=noise_floor(CPU_ITL.hardware.noise).by_last,
        ),
        _limits_table(results),
        _schedule_table(results),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _targets(found: Sequence[TargetResult]) -> str:
    rows = [(f.claim, f.target, f.measured, f.verdict) for f in found]
    missed = [f"* {f.claim}: {f.worst}." for f in found if not f.is_met and f.worst]
    text = "## Figures to reach\n\n" + _table(("Figure", "Target", "Measured", ""), rows)
    return text + ("\nMissed where:\n\n" + "\n".join(missed) + "\n" if missed else "")


def _goodput_table(results: Results) -> str:
    head = ("Workload", "oracle req/s", SCHEDULED, *COMPARED[:-1], f"{OURS} [95 %]")
    rows = []
    for workload in results.workloads:
        name = workload.name
        oracle = _median(results, name, ORACLE, lambda s: s.good_rps)
        cells = [f"{_ratio(results, name, arm):.1%}" for arm in COMPARED[:-1]]
        middle, low, high = median_interval(ratios(results, name, OURS, ORACLE))
        is_steady = name not in results.schedules
        scheduled = "-" if is_steady else f"{_scheduled(results, name):.1%}"
        rows.append(
            (name, f"{oracle:.2f}", scheduled, *cells, f"{middle:.1%} [{low:.1%}, {high:.1%}]")
        )
    return "## Goodput, as a share of the oracle's\n\n" + _table(head, rows)


def _capacity_table(results: Results) -> str:
    setting = results.workloads[0].setting
    rows = [(arm, f"{capacity_rps(results, arm):.2f}") for arm in (ORACLE, *COMPARED)]
    title = f"## Capacity: req/s at 99 % attainment, {setting.name} ms\n\n"
    return title + _table(("Arm", "req/s"), rows)


def _attainment_table(results: Results) -> str:
    arms = (ORACLE, SINGLE, *DEFAULTS, "AIMD 256/2048", OURS)
    rows = []
    for workload in results.workloads:
        cells = [
            f"{_median(results, workload.name, arm, lambda s: s.attainment.least):.2%}"
            for arm in arms
        ]
        ours = workload.name, OURS
        rows.append(
            (
                workload.name,
                *cells,
                f"{_median(results, *ours, lambda s: s.settled.least):.2%}",
                f"{_median(results, *ours, lambda s: s.ttft_p99_ms):.0f}",
                f"{_median(results, *ours, lambda s: s.tpot_p99_ms):.1f}",
                f"{_median(results, *ours, lambda s: s.itl_p99_ms):.1f}",
                f"{_median(results, workload.name, ORACLE, lambda s: s.violation_s):.0f}",
                f"{_median(results, *ours, lambda s: s.violation_s):.0f}",
            )
        )
    head = (
        "Workload",
        *arms,
        "ours after 60 s",
        "TTFT p99 ms",
        "TPOT p99 ms",
        "ITL p99 ms",
        "violation s, oracle",
        "violation s, ours",
    )
    return "## Attainment (p99s and seconds in violation are ours)\n\n" + _table(head, rows)


def _control_table(results: Results) -> str:
    rows = []
    for workload in results.workloads:
        controls = [s.control for s in results.scores[workload.name, OURS] if s.control is not None]
        regret = _median(results, workload.name, ORACLE, lambda s: s.good) - _median(
            results, workload.name, OURS, lambda s: s.good
        )
        rows.append(
            (
                workload.name,
                _middle([c.to_final_s for c in controls], "{:.0f}"),
                _middle([c.to_final_pace_s for c in controls], "{:.0f}"),
                _middle([c.after_step_s for c in controls], "{:.0f}"),
                _middle([c.changes for c in controls], "{:.0f}"),
                _middle([c.reversals for c in controls], "{:.0f}"),
                _middle([c.model_error for c in controls], "{:.1%}"),
                _middle([c.coverage for c in controls], "{:.1%}"),
                f"{regret:.0f}",
            )
        )
    head = (
        "Workload",
        "to final, s",
        "to final pace, s",
        "after step, s",
        "changes",
        "reversals",
        "model error",
        "coverage",
        "regret, requests",
    )
    return "## How ours moves\n\n" + _table(head, rows)


def _ablation_table(results: Results) -> str:
    names = [w.name for w in results.workloads if results.has(w.name, ABLATIONS[0])]
    if not names:
        return ""
    rows = []
    for name in names:
        for arm in (OURS, *ABLATIONS):
            controls = [s.control for s in results.scores[name, arm] if s.control is not None]
            rows.append(
                (
                    name,
                    arm,
                    f"{_ratio(results, name, arm):.1%}",
                    f"{_median(results, name, arm, lambda s: s.attainment.least):.2%}",
                    f"{_median(results, name, arm, lambda s: s.itl_p99_ms):.1f}",
                    _middle([c.changes for c in controls], "{:.0f}"),
                    _middle([c.reversals for c in controls], "{:.0f}"),
                )
            )
    head = ("Workload", "Arm", "goodput / oracle", "attainment", "ITL p99 ms", "changes", "turns")
    return "## Ours with one guard removed\n\n" + _table(head, rows)


def _limits_table(results: Results) -> str:
    rows = []
    for workload in results.workloads:
        name = workload.name
        pairs = (
            results.oracle[name],
            results.single[workload.setting.name],
            results.found[name, "random"],
            results.found[name, "optuna"],
        )
        unit = f"{results.units[name]:g}"
        rows.append((name, unit, *(f"{batch}/{budget}" for batch, budget in pairs)))
    head = ("Workload", "load 1.0, req/s", ORACLE, SINGLE, *SEARCHES)
    return "## Fixed limits that were found\n\n" + _table(head, rows)


def _schedule_table(results: Results) -> str:
    rows = [
        (
            name,
            f"{_scheduled(results, name):.1%}",
            f"{statistics.median(over_schedule(results, name, OURS)):.1%}",
            f"{statistics.median(each.trials for each in found):.0f}",
            _in_words(found[0]),
        )
        for name, found in results.schedules.items()
    ]
    head = (
        "Workload",
        "schedule / oracle",
        "ours / schedule",
        "trials",
        "pairs by minute, first seed",
    )
    return "## Best schedules\n\n" + _table(head, rows) if rows else ""


def _scheduled(results: Results, workload: str) -> float:
    """The best schedule's good requests over the oracle's."""
    return 1 / statistics.median(over_schedule(results, workload, ORACLE))


def _in_words(schedule: Schedule) -> str:
    """Name each pair once for as many minutes as it holds."""
    spans = ((pair, sum(1 for _ in span)) for pair, span in groupby(schedule.pairs))
    return ", ".join(
        f"{batch}/{budget}" + (f" x{minutes}" if minutes > 1 else "")
        for (batch, budget), minutes in spans
    )


def _ratio(results: Results, workload: str, arm: str) -> float:
    return statistics.median(ratios(results, workload, arm, ORACLE))


def _median(
    results: Results, workload: str, arm: str, value: Callable[[EpisodeScore], float]
) -> float:
    return statistics.median(value(score) for score in results.scores[workload, arm])


def _middle(values: Sequence[float | None], style: str) -> str:
    known = [value for value in values if value is not None]
    return style.format(statistics.median(known)) if known else "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _plot(title: str, path: str) -> str:
    return f"![{title}]({path})\n"


def steady_of(results: Results) -> list[ReportWorkload]:
    """The sweep of the first setting, by load."""
    setting = results.workloads[0].setting.name
    steady = [w for w in results.workloads if w.is_steady and w.setting.name == setting]
    return sorted(steady, key=lambda w: w.load or 0.0)
