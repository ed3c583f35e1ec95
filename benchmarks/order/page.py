"""The page of results: medians over seeds, beside the order of arrival of the same seed."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from order.batches import GROUPINGS, useful_share
from order.cases import Case
from order.orders import ARRIVAL, BUILT, ORDERS, PREDICTED
from order.play import Figures, waste

_OVERLOAD, _WASTE_S = 1.2, 240.0
_HEADER = (
    "| Order | good requests/s | TTFT mean | TTFT p99 | e2e mean"
    " | missed TTFT | of the longest 1 % | their slowdown, p99 |"
)


class Row(msgspec.Struct, frozen=True):
    """One run."""

    case: str
    unit_rps: float
    load: float
    order: str
    seed: int
    figures: Figures


def page(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    """Write Markdown."""
    num_seeds = len({row.seed for row in rows})
    intro = (
        "# In which order requests wait, simulated\n\n"
        "`PYTHONPATH=benchmarks:engine:kernels:operator:sidecar:sim python -m order` wrote this"
        f" page: 240 simulated seconds, {num_seeds} seeds, all orders on the same requests.\n"
        "Good requests and times are the median change from the order of arrival on the same seed,"
        " with the least and the largest in brackets; rows of arrival have the medians themselves."
        "\nk is how many of its own service times a request lets later ones pass. `true` knows the"
        " output before it begins, and is the limit of any prediction.\n"
        "The orders by what binds add the time that KV memory is held, while it is nine tenths"
        " full.\n`prompt, k=4` is what `admission.order: ShortestFirst` does"
        " ([why](../../../docs/decisions/0067-short-prompts-first-where-it-is-asked-for.md)).\n"
    )
    sections = [_section(rows, case) for case in cases]
    return "\n".join(
        [intro, *sections, _lengths(rows, cases), _waste(rows, cases), _batches(cases, num_seeds)]
    )


def _section(rows: Sequence[Row], case: Case) -> str:
    mine = [row for row in rows if row.case == case.name]
    lines = [f"## {case.name}\n", f"A load of 1.0 is {mine[0].unit_rps:g} requests a second.\n"]
    for load in sorted({row.load for row in mine}):
        lines += [f"### Load {load:g}\n", _HEADER, "|---|---|---|---|---|---|---|---|"]
        runs = {
            order.name: [row.figures for row in mine if (row.load, row.order) == (load, order.name)]
            for order in ORDERS
        }
        lines += [_line(name, found, runs[ARRIVAL.name]) for name, found in runs.items()]
        lines.append("")
    return "\n".join(lines)


def _line(name: str, runs: Sequence[Figures], base: Sequence[Figures]) -> str:
    is_base = runs is base
    cells = [
        _plain([run.good_rps for run in runs], ".2f") if is_base else _change(runs, base, _good),
        _plain([run.ttft_mean_ms for run in runs], ".0f", " ms")
        if is_base
        else _change(runs, base, lambda run: run.ttft_mean_ms),
        _plain([run.ttft_p99_ms for run in runs], ".0f", " ms")
        if is_base
        else _change(runs, base, lambda run: run.ttft_p99_ms),
        _plain([run.e2e_mean_s for run in runs], ".1f", " s")
        if is_base
        else _change(runs, base, lambda run: run.e2e_mean_s),
        _plain([run.missed for run in runs], ".2%"),
        _plain([run.missed_longest for run in runs], ".0%"),
        _plain([run.slowdown_longest or math.nan for run in runs], ".1f"),
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def _good(run: Figures) -> float:
    return run.good_rps


def _plain(values: Sequence[float], style: str, unit: str = "") -> str:
    return f"{statistics.median(values):{style}}{unit}"


def _change(
    runs: Sequence[Figures], base: Sequence[Figures], value: Callable[[Figures], float]
) -> str:
    changes = [value(run) / value(other) - 1 for run, other in zip(runs, base, strict=True)]
    middle = statistics.median(changes)
    return f"{middle:+.1%} [{min(changes):+.1%}, {max(changes):+.1%}]"


def _lengths(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    lines = [
        "## The model of output lengths\n",
        (
            "The mean factor between the predicted median and the output, and the share of the"
            " outputs within the predicted 0.9 quantile, at a load of 0.95.\n"
        ),
        "| Case | factor | within 0.9 |",
        "|---|---|---|",
    ]
    for case in cases:
        runs = [
            row.figures
            for row in rows
            if (row.case, row.load, row.order) == (case.name, 0.95, PREDICTED)
        ]
        factors = [math.exp(run.length_error or 0.0) for run in runs]
        covered = [run.length_covered or 0.0 for run in runs]
        lines.append(f"| {case.name} | {_plain(factors, '.2f')} | {_plain(covered, '.1%')} |")
    return "\n".join([*lines, ""])


def _waste(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    lines = [
        "## What a better forecast could win\n",
        (
            "At a load of 1.2, first seed: the share of the requests that were computed and came"
            " too late, and of the prompt tokens that were computed again after a preemption. All"
            " others that missed were refused in time.\n"
        ),
        "| Case | late, arrival | late, prompt, k=4 | again, arrival | again, prompt, k=4 |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        unit_rps = next(row.unit_rps for row in rows if row.case == case.name)
        found = [
            waste(case, order, _OVERLOAD * unit_rps, 1, _WASTE_S)
            for order in ORDERS
            if order.name in {ARRIVAL.name, BUILT}
        ]
        shares = [*(each.late for each in found), *(each.computed_again for each in found)]
        lines.append(f"| {case.name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    return "\n".join([*lines, ""])


def _batches(cases: Sequence[Case], num_seeds: int) -> str:
    lines = [
        "## Static batches\n",
        (
            "The share of the rows and steps of a batch of 32 that gives a token, where the batch"
            " is gathered from 256 that wait.\n"
        ),
        "| Case | " + " | ".join(GROUPINGS) + " |",
        "|---|" + "---|" * len(GROUPINGS),
    ]
    lines += [f"| {case.name} | " + " | ".join(_shares(case, num_seeds)) + " |" for case in cases]
    return "\n".join([*lines, ""])


def _shares(case: Case, num_seeds: int) -> Iterator[str]:
    for alike in GROUPINGS.values():
        seeds = range(1, num_seeds + 1)
        yield _plain([useful_share(case, alike, seed) for seed in seeds], ".0%")
