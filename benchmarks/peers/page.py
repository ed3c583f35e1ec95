"""The tables of a run, and the page that holds them. Pure."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peers.rows import DRAFT_TOKENS, ROWS, Row
from peers.setup import Identity
from peers.targets import OURS_BESIDE, TARGETS, Figure, Judged, Runs, judged, lookup_gains, ratios
from serving_workload import Workload

FIGURES: dict[Figure, str] = {
    "output_tokens_per_s": "output tok/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "tpot_p50_ms": "TPOT p50 ms",
    "tpot_p99_ms": "TPOT p99 ms",
}
_LABELS = {
    row.name: f"{row.engine}, {row.precision}{', lookup' if row.lookup else ''}" for row in ROWS
}
_RATIOS = (
    "Ours over theirs, repeat by repeat: medians and ranges. A target on a rate asks for at least "
    "so much, one on a time for less than so much."
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that a run has found."""

    workload: Workload
    cores: int
    identities: Mapping[str, Identity]
    """Version and precision of each row that was run, by the row's name."""
    left_out: Mapping[str, str]
    """Why a row was not run, by the row's name."""
    runs: Runs


def page(measured: Measured) -> str:
    """Return the whole page."""
    parts = [
        "# Beside other engines on a CPU",
        _conditions(measured),
        engines_table(measured),
        "## Paceline beside each",
        _RATIOS,
        beside_table(measured.runs),
        *([lookup_sentence(measured.runs)] if lookup_gains(measured.runs) else []),
        summary(judged(measured.runs)),
        *(f"Left out, {name}: {why}." for name, why in measured.left_out.items()),
        "Made by `PYTHONPATH=benchmarks python benchmarks/peers/run.py FOLDER`.\n",
    ]
    return "\n\n".join(parts)


def engines_table(measured: Measured) -> str:
    """One row for each engine: what it is, its medians, and ranges in brackets."""
    lines = [
        f"| Engine | Precision | Lookup | Tokens a step | {' | '.join(FIGURES.values())} |",
        f"|{'---|' * (4 + len(FIGURES))}",
    ]
    for row in _rows(measured):
        results = measured.runs[row.name]
        budget = "its own" if row.token_budget is None else f"{row.token_budget:,}"
        precision = measured.identities[row.name].precision
        if row.precision == "default":
            precision += " (its default)"
        cells = [row.engine, precision, "yes" if row.lookup else "", budget]
        for name in FIGURES:
            digits = 1 if name == "output_tokens_per_s" else 0
            cells.append(spread([getattr(result, name) for result in results], digits))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def beside_table(runs: Runs) -> str:
    """One row for each peer that ran beside ours: all ratios, and the verdicts on those wanted."""
    targets = {(target.peer, target.figure): target for target in TARGETS}
    lines = [
        f"| Ours | Beside | {' | '.join(FIGURES.values())} |",
        f"|{'---|' * (2 + len(FIGURES))}",
    ]
    for peer, ours in OURS_BESIDE.items():
        cells = [_LABELS[ours], _LABELS[peer]]
        for figure in FIGURES:
            found = ratios(runs, peer, figure)
            if not found:
                break
            cell = f"{statistics.median(found):.2f}x ({min(found):.2f} to {max(found):.2f})"
            if target := targets.get((peer, figure)):
                (verdict,) = judged(runs, [target])
                cell += f", wanted {target.bound:.2f}x: **{verdict.verdict}**"
            cells.append(cell)
        else:
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def lookup_sentence(runs: Runs) -> str:
    """Say what lookup brings to each engine, over itself without."""
    engines = {row.name: row.engine for row in ROWS}
    gains = [
        f"{engines[name]} {statistics.median(each):.2f}x ({min(each):.2f} to {max(each):.2f})"
        for name, each in lookup_gains(runs).items()
    ]
    return f"Output tok/s with lookup over the same engine's without: {', '.join(gains)}."


def summary(found: Sequence[Judged]) -> str:
    """Say how many targets are met, name those that are missed, and count those not run."""
    counts = Counter(each.verdict for each in found)
    parts = [f"{counts['met']} of {len(found)} targets are met."]
    missed = [
        f"{FIGURES[each.target.figure]} beside {_LABELS[each.target.peer]}"
        for each in found
        if each.verdict == "missed"
    ]
    if missed:
        parts.append(f"Missed: {'; '.join(missed)}.")
    if counts["not run"]:
        parts.append(f"{counts['not run']} were not run.")
    return " ".join(parts)


def spread(values: Sequence[float], digits: int) -> str:
    """Format the median and the range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _rows(measured: Measured) -> list[Row]:
    return [row for row in ROWS if row.name in measured.runs]


def _conditions(measured: Measured) -> str:
    workload = measured.workload
    versions = {row.engine: measured.identities[row.name].version for row in _rows(measured)}
    named = ", ".join(f"{engine} {version}" for engine, version in versions.items())
    repeats = max(map(len, measured.runs.values()), default=0)
    return (
        f"SmolLM2-135M-Instruct, {workload.requests} requests, prompts of {workload.shortest} to "
        f"{workload.longest} tokens, {workload.output_tokens} output tokens, "
        f"{workload.concurrency} at a time, {measured.cores} cores, greedy, without prefix "
        f"caching; medians of {repeats} repeats and their ranges: {named}.\n\n"
        "All engines get the same prompts in the same closed loop. Those that compute in their "
        "default precision run in turn in every repeat, then those in float32, then those with "
        "quantised weights. Each lives in a process of its own and is stepped there; llama.cpp "
        "alone is asked over HTTP, on the same machine. While one runs, the others are stopped. "
        f"Lookup drafts {DRAFT_TOKENS} tokens from the sequence itself."
    )
