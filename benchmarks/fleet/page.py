"""The page of a run: one row for each size of the fleet."""

from collections.abc import Mapping, Sequence
from typing import Any

_INTRO = """# A fleet of pods under one tuner

The operator's own rounds, loop and HTTP client, {where}, over fake sidecars on loopback
(`PYTHONPATH=benchmarks:tests python -m fleet`): three pods a service, each read every 5 s. Their
answers were recorded from a simulated 8B on an H100 under {rps:,.0f} requests a minute and pod.
"""
_ROWS = (
    ("decisions a second (due)", "{decisions_a_second:.0f} ({due_a_second:.0f})"),
    ("lateness p50, p99, worst", "{late_p50_s:.2f}, {late_p99_s:.2f}, {late_max_s:.2f} s"),
    ("polls lost", "{lost}"),
    ("the tuner's CPU", "{tuner_cores:.2f} cores"),
    ("the same a decision, HTTP and reports included", "{tuner_cpu_ms_a_decision:.2f} ms"),
    ("the fake sidecars' CPU", "{sidecars_cores:.2f} cores"),
    ("the tuner's memory", "{tuner_rss_mib:.0f} MiB"),
    ("a pod's part of it", "{kib_a_pod:.0f} KiB"),
    ("CPU by process", "{cores}"),
    ("memory by process", "{memory}"),
    ("an answer (all records)", "{answer_bytes:,} ({whole_answer_bytes:,}) bytes"),
    ("load average of the machine", "{load_average:.1f} on {num_cores} cores"),
)
_CHAOS_ROWS = (
    ("faulty pods", "{faulty_pods}"),
    ("limits out of a pod's bounds", "{unsafe}"),
    ("limits to a pod that answers as another", "{wrong}"),
    ("leases of limits that ran out", "{leases_lost}"),
    ("one process killed: its last pod read again after", "{after_kill} s"),
    ("another one stopped: its last pod read again after", "{after_stop} s"),
    ("all engines anew: told what the service wants, p50, last", "{told_p50}, {told_last} s"),
)


def page(runs: Sequence[Mapping[str, Any]], *, has_chaos: bool) -> str:
    """Write the table."""
    shown = [_shown(run) for run in runs]
    heads = " | ".join(f"{run['pods']:,} pods" for run in runs)
    rows = [*_ROWS, *(_CHAOS_ROWS if has_chaos else ())]
    lines = [f"| {name} | {' | '.join(text.format(**s) for s in shown)} |" for name, text in rows]
    table = "\n".join([f"| | {heads} |", "|---" * (len(runs) + 1) + "|", *lines])
    processes = runs[0]["processes"]
    where = (
        "in one process" if processes == 1 else f"in {processes} processes beside the operator's"
    )
    return f"{_INTRO.format(rps=5000, where=where)}\n{table}\n"


def _shown(run: Mapping[str, Any]) -> dict[str, Any]:
    told = (run["told"], run.get("before_restart", {}).get("told", {}))
    return {
        **run,
        "num_cores": run["cores"],
        "cores": _listed(run["cores_by_process"], "{:.2f}"),
        "memory": _listed(run["rss_mib_by_process"], "{:.0f} MiB"),
        "leases_lost": sum(each.get("leases lost", 0) for each in told),
        "after_kill": _seconds(run.get("read_anew_after_kill_s")),
        "after_stop": _seconds(run.get("read_anew_after_stop_s")),
        "due_a_second": run["polls_due"] / run["seconds"],
        "lost": run["counts"].get("polls lost", 0),
        "unsafe": sum(each.get("unsafe", 0) for each in told),
        "wrong": sum(each.get("sent to the wrong pod", 0) for each in told),
        "told_p50": _seconds(run.get("told_after_restart_p50_s")),
        "told_last": _seconds(run.get("told_after_restart_last_s")),
    }


def _listed(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
