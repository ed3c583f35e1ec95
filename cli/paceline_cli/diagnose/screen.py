"""A diagnosis as a person reads it in ten seconds, and as JSON. Pure."""

import json
import math
from dataclasses import asdict
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline_api.units import significant
from paceline_cli.diagnose.achieved import Achieved
from paceline_cli.diagnose.advice import ms
from paceline_cli.diagnose.diagnosis import Diagnosis
from paceline_cli.diagnose.engine_time import EngineTime
from paceline_cli.sla_targets import missed_targets, targets

WIDTH: Final = 100
"""Characters."""
_BAR: Final = 24
BOUNDS: Final = {
    "Idle": "nothing: for most of the window no request ran",
    "Host": "the host: the device waits for scheduling and inputs",
    "KV": "KV memory: sequences wait for blocks, or lose them",
    "Memory": "memory: weights and KV are read whatever the step computes",
    "Compute": "compute: each further token costs its arithmetic",
}


def screen(name: str, found: Diagnosis) -> RenderableType:
    """Lay out the whole diagnosis."""
    parts: list[RenderableType] = [_sla(found)]
    if found.spans:
        parts += [Text(), _latency(found)]
    parts += [Text(), _bound(found.time), _engine(found.time), Text(), _given(found)]
    parts += [Text(), _advice(found)]
    if found.note:
        parts += [Text(), Text(found.note, style="dim")]
    load = f"{found.arrival_rps:.2f} requests/s"
    if found.capacity_rps is not None:
        load += f" of {found.capacity_rps:.2f} that fit within the SLA"
    return Panel(
        Group(*parts),
        title=f"[b]paceline diagnose[/b] · {name}",
        title_align="left",
        subtitle=f"last {found.window_s:.0f} s: {_ended(found)} · {load}",
        subtitle_align="right",
        border_style="dim",
        width=WIDTH,
        padding=(1, 2),
    )


def as_json(name: str, found: Diagnosis) -> str:
    """Format the diagnosis as JSON, for a program; milliseconds and shares."""
    time = found.time
    body = asdict(found) | {
        "name": name,
        "bound": time.bound,
        "idle_ms": time.idle_ms,
        "busy_ms": time.busy_ms,
    }
    return json.dumps(body, indent=2)


def _ended(found: Diagnosis) -> str:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.outcomes.items()))
    return counts or "no request ended"


def _sla(found: Diagnosis) -> Text:
    if not targets(found.sla, found.observed):
        return Text("no SLA is declared: latencies are told, not judged", style="dim")
    missed = missed_targets(found.sla, found.observed)
    if missed:
        return Text(f"misses the SLA: {'; '.join(missed)}", style="bold dark_orange")
    return Text("keeps the SLA", style="bold bright_blue")


def _latency(found: Diagnosis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", expand=True)
    table.add_column("where latency comes from", style="dim", no_wrap=True)
    table.add_column("mean", justify="right")
    table.add_column("slowest 5 %", justify="right")
    table.add_column("of the slowest", min_width=_BAR + 6)
    for span in found.spans:
        table.add_row(
            Text(span.name, style="bold"), ms(span.mean_ms), ms(span.slow_ms), "", end_section=False
        )
        for part in span.parts:
            share = part.slow_ms / span.slow_ms if span.slow_ms else 0.0
            style = "bold" if part is span.largest else ""
            table.add_row(
                Text(f"  {part.name}", style=style),
                ms(part.mean_ms),
                ms(part.slow_ms),
                _bar(share),
            )
    return table


def _bound(time: EngineTime) -> Text:
    return Text.assemble("the engine is bound by ", (BOUNDS[time.bound], "bold"))


def _engine(time: EngineTime) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    table.add_column("where the engine's time goes", style="dim", no_wrap=True)
    table.add_column("ms a step", justify="right")
    table.add_column("of the window", min_width=_BAR + 6)
    rows = (
        ("fixed: weights, launches", time.parts.fixed),
        ("decode arithmetic", time.parts.decode),
        ("KV of the contexts", time.parts.kv),
        ("prompts", time.parts.prefill),
        *([("the draft model's tokens", time.parts.draft)] if time.parts.draft else []),
        ("host, in and between steps", time.host_ms),
        ("idle", time.idle_ms),
    )
    for name, spent in rows:
        per_step = "" if name == "idle" else f"{spent / max(time.num_steps, 1):.2f}"
        table.add_row(f"  {name}", per_step, _bar(spent / time.window_ms))
    return table


def _given(found: Diagnosis) -> Table:
    """Lay out what the pod gives, what of its device it uses, and what that costs."""
    given, cost = found.throughput, found.cost
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    rates = f"{significant(given.output_tps)} output tokens/s"
    table.add_row("given", f"{rates}, {significant(given.finished_rps)} requests/s")
    if cost is not None:
        output, total = significant(cost.per_million_output), significant(cost.per_million_total)
        table.add_row("cost of 1M tokens", f"{output} of output, {total} of prompts and output")
    if found.achieved is not None:
        table.add_row("achieved in steps", _achieved(found.achieved))
    if found.capacity_rps is not None:  # the step model is trusted
        table.add_row("decode", _turning(found))
    return table


def _achieved(found: Achieved) -> str:
    moved, computed = significant(found.gb_per_s), significant(found.tflops)
    if found.bandwidth_share is None or found.arithmetic_share is None:
        return (
            f"{moved} GB/s, {computed} TFLOP/s; of how much is not known:"
            f" {found.device or 'the device'} is not in the table of devices"
        )
    return (
        f"{found.bandwidth_share:.0%} of the bandwidth ({moved} GB/s),"
        f" {found.arithmetic_share:.1%} of the bf16 arithmetic ({computed} TFLOP/s)"
    )


def _turning(found: Diagnosis) -> str:
    batch = f"{found.time.mean_batch:.1f} sequences a step"
    if found.turning_batch is None:
        return f"memory bounds any batch at this length of contexts; now {batch}"
    turn = f"compute bounds it from {max(1, math.ceil(found.turning_batch)):,} sequences on"
    return f"{turn}; now {batch}"


def _advice(found: Diagnosis) -> RenderableType:
    if not found.advice:
        return Text("nothing stands out: no knob or resource would change much", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    table.add_column(style="bold", ratio=1)
    table.add_column(ratio=3)
    for advice in found.advice:
        table.add_row(advice.lever, advice.text)
    return Group(Text("what would help", style="dim"), table)


def _bar(share: float) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * _BAR)
    return Text.assemble(
        ("█" * filled, "bright_blue"), ("·" * (_BAR - filled), "dim"), f" {share:4.0%}"
    )
