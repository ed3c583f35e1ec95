"""The page of long prompts: goodput as a share of the best fixed pair's. Markdown."""

import statistics
from collections.abc import Sequence

from paceline_sim.hardware import Hardware
from tune_report.long_findings import CHUNK, DEPTHS, LongFindings, chunk_ms
from tune_report.run import OURS, Results
from tune_report.targets import ORACLE, SINGLE, median_interval, over_schedule, ratios

_NEAR, _NEAR_BELOW = 0.97, 0.99
_HARD_LOAD = 0.95
_COLUMNS = (
    "Workload",
    "load 1.0, req/s",
    "oracle",
    "its req/s",
    "best single static",
    "best schedule",
    "ours [95 %]",
    "attainment, oracle",
    "attainment, ours",
    "TTFT p99 ms",
    "TPOT p99 ms",
    "ITL p99 ms",
)
_INTRODUCTION = """\
# The tuner on long prompts, measured

Written by `make tune-report-long`. Every figure is computed from simulated episodes, as on
[the tuner, measured](tuning-report.md), which says how it is counted.

Prompts are log-normal from 4,000 to 16,000 tokens (mean 9,000), or up to 64,000 (mean 14,000), and
outputs from 100 to 1,000 (mean 340; of agents 180). Prefix hits are those of growing conversations:
of a k-th turn all but the last of k equal parts was computed before. An 8B model on an H100 keeps
a TTFT of 8 s and ITL or TPOT of 60 ms; on an A100 16 s and 100 ms; a 70B model on four H100 12 s
and 100 ms. The grid has 8 to 128 sequences and 128 to 8,192 tokens.

"""
_ON_CHUNKS = """\
## The price of a chunk

Milliseconds that a chunk of {chunk} prompt tokens adds to a step of 16 sequences with contexts of
8,000, by how many tokens lie before it. A pacer that takes a waiting prompt's prefix hits for
tokens yet to come, or all chunks for shallow ones, is wrong by the difference.
"""
_ON_FINDINGS = """
## What else was found

Of the first seed of each workload, by the tuner as it is.

* **q_r over contexts**: the 95th of 100 steps' measured over predicted time, in the quarter of the
  steps with the least context and in that with the most. Where both are alike, one q_r serves both.
* **Too late**: requests that were refused for their waiting time, those that were admitted and
  whose first token came too late all the same, and the share of all prefill that those cost.
* **KV**: the share of the time with at least 95 % of the blocks taken, preemptions, and what bound
  the limits in most decisions. Where it is KV, memory is full before a step is.
"""
_FOUND = (
    "Workload",
    "q95, short contexts",
    "q95, long contexts",
    "refused",
    "late",
    "prefill of the late",
    "KV full",
    "preempted",
    "bound by",
)


def long_page(results: Results, revision: str) -> str:
    """Write the page. `revision` names the code that was measured."""
    shares = {w.name: ratios(results, w.name, OURS, ORACLE) for w in results.workloads}
    medians = {name: statistics.median(mine) for name, mine in shares.items()}
    usual = [medians[w.name] for w in results.workloads if (w.load or 1.0) <= _HARD_LOAD]
    measured = f"Measured at revision {revision}, medians of {len(results.seeds)} seeds.\n"
    lines = [
        _INTRODUCTION + measured,
        "| Figure | Target | Measured |",
        "| --- | --- | --- |",
        _figure("goodput over the oracle's, every workload", _NEAR, list(medians.values())),
    ]
    if usual:
        lines.append(_figure(f"the same at loads of 0.6 to {_HARD_LOAD:g}", _NEAR_BELOW, usual))
    over = [statistics.median(over_schedule(results, name, OURS)) for name in results.schedules]
    if over:
        lines.append(_figure("goodput over the best schedule's, changing workloads", _NEAR, over))
    lines += ["", f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
    lines += [_row(results, w.name, shares[w.name]) for w in results.workloads]
    return "\n".join((*lines, *_chunks(results), *_findings(results))) + "\n"


def _chunks(results: Results) -> list[str]:
    """Price a chunk by what lies before it, on each device."""
    devices: dict[str, Hardware] = {}
    for workload in results.workloads:
        devices.setdefault(workload.setting.hardware.name, workload.setting.hardware)
    rows = [
        (name, *(f"{chunk_ms(hardware, before):.1f}" for before in DEPTHS))
        for name, hardware in devices.items()
    ]
    head = ("Device", *(f"behind {before:,} tokens" for before in DEPTHS))
    return ["", _ON_CHUNKS.format(chunk=CHUNK), *_table(head, rows)]


def _findings(results: Results) -> list[str]:
    rows = [_found(name, each) for name, each in results.findings.items()]
    return ["", _ON_FINDINGS.strip("\n"), "", *_table(_FOUND, rows)]


def _found(name: str, found: LongFindings) -> tuple[str, ...]:
    return (
        name,
        f"{found.spread_short:.3f}",
        f"{found.spread_long:.3f}",
        str(found.shed),
        str(found.late),
        f"{found.late_tokens:.1%}",
        f"{found.kv_full:.1%}",
        str(found.preemptions),
        f"{found.bound} ({found.bound_share:.0%})",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = (head, ["---"] * len(head), *rows)
    return [f"| {' | '.join(line)} |" for line in lines]


def _figure(title: str, target: float, medians: list[float]) -> str:
    kept = sum(median >= target for median in medians)
    least = f"{min(medians):.1%}"
    return f"| {title} | >= {target:.0%} | {kept} of {len(medians)}, least {least} |"


def _row(results: Results, name: str, shares: list[float]) -> str:
    oracle, ours = results.scores[name, ORACLE], results.scores[name, OURS]
    median, low, high = median_interval(shares)
    single = statistics.median(ratios(results, name, SINGLE, ORACLE))
    scheduled = "-"
    if name in results.schedules:
        scheduled = f"{1 / statistics.median(over_schedule(results, name, ORACLE)):.1%}"
    batch, budget = results.oracle[name]
    cells = (
        name,
        f"{results.units[name]:g}",
        f"{batch}/{budget}",
        f"{statistics.median(s.good_rps for s in oracle):.2f}",
        f"{single:.1%}",
        scheduled,
        f"{median:.1%} [{low:.1%}, {high:.1%}]",
        f"{statistics.median(s.attainment.least for s in oracle):.2%}",
        f"{statistics.median(s.attainment.least for s in ours):.2%}",
        f"{statistics.median(s.ttft_p99_ms for s in ours):.0f}",
        f"{statistics.median(s.tpot_p99_ms for s in ours):.1f}",
        f"{statistics.median(s.itl_p99_ms for s in ours):.1f}",
    )
    return f"| {' | '.join(cells)} |"
