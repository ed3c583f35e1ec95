"""A plan as a person reads it in ten seconds, and as JSON. Pure."""

import json
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline_api.units import significant
from paceline_cli.plan.answer import PlanAnswer
from paceline_cli.plan.kv_memory import Line, occupancy_line
from paceline_cli.plan.outlook import Estimate, Latency, Outlook, ServicePlan
from paceline_cli.plan.sequences import sequence_lines

_GOOD: Final = "bold bright_blue"
_BAD: Final = "bold dark_orange"
WIDTH: Final = 100
"""Characters."""
_SECONDS_FROM_MS: Final = 10_000.0


def screen(answer: PlanAnswer) -> RenderableType:
    """Lay out the whole plan."""
    plan, trace = answer.plan, answer.trace
    parts: list[RenderableType] = [_verdict(plan)]
    if plan.num_left_out:
        parts.append(Text(_left_out(answer), style=_BAD))
    parts.append(Text())
    if plan.outlook is not None:
        parts += [_service(plan.outlook), Text(), _latencies(plan.outlook), Text()]
    parts += [Text("why the memory bounds the batch", style="dim"), _arithmetic(answer), Text()]
    parts += [Text(note, style="dim") for note in (*notes(plan), *_dtype_notes(answer))]
    service = answer.service
    return Panel(
        Group(*parts),
        title=(
            f"[b]paceline plan[/b] · {service.metadata.name} · {service.spec.model.uri}"
            f" on {plan.memory.device.name}"
        ),
        title_align="left",
        subtitle=(
            f"{trace.format} trace: {len(trace.requests):,} requests in {_span(trace.seconds)}"
        ),
        subtitle_align="right",
        border_style="dim",
        width=WIDTH,
        padding=(1, 2),
    )


def notes(plan: ServicePlan) -> list[str]:
    """What the numbers rest on."""
    drawn = f"step times x/÷ {plan.factor:g}, blocks of the trace drawn anew"
    lines = [f"(low .. high): 5th to 95th of draws; {drawn}"]
    if plan.outlook is not None:
        lines.append(
            f"p99s: {plan.outlook.num_simulated:,} requests of the busiest"
            f" {_span(plan.outlook.simulated_s)}, simulated; nothing shed, no prefix shared"
        )
        if plan.outlook.num_simulated < 1000:  # noqa: PLR2004 - ten values beyond a p99
            lines.append("fewer than 1,000 requests: a p99 of them is hardly more than their worst")
    return lines


def _dtype_notes(answer: PlanAnswer) -> list[str]:
    if answer.assumed_dtype == "float32":
        return [
            "dtype Auto on a CPU: planned as float32; a machine that measures bfloat16 to be",
            "faster serves that, with half of the bytes",
        ]
    if answer.assumed_dtype == "bfloat16":
        return ["dtype Auto on a CPU: planned as bfloat16, which the remembered pod chose"]
    return []


def as_json(answer: PlanAnswer) -> str:
    """Format the plan as JSON, for a program."""
    plan = answer.plan
    document: dict[str, Any] = {
        "service": answer.service.key,
        "model": answer.service.spec.model.uri,
        "device": plan.memory.device.name,
        "assumed_dtype": answer.assumed_dtype,
        "achievable": not plan.obstacle,
        "reason": plan.obstacle,
        "message": plan.message,
        "step_time_factor": plan.factor,
        "trace": {
            "format": answer.trace.format,
            "requests": len(answer.trace.requests),
            "unanswered": answer.trace.num_unanswered,
            "left_out": plan.num_left_out,
            "seconds": answer.trace.seconds,
        },
        "memory": {
            "ranks": plan.memory.ranks,
            "weight_bytes": plan.memory.weight_bytes,
            "kv_bytes": plan.memory.kv_bytes,
            "kv_bytes_per_token": plan.memory.kv_bytes_per_token,
            "kv_tokens": plan.memory.tokens,
            "arithmetic": [asdict(line) for line in _lines(answer)],
        },
        "outlook": None if plan.outlook is None else _outlook(plan.outlook),
    }
    return json.dumps(document, indent=2)


def _outlook(outlook: Outlook) -> dict[str, Any]:
    fields = asdict(outlook)
    # The demand's rates are those of a full pod, a device of the arithmetic.
    fields["demand"] = {
        name: value for name, value in fields["demand"].items() if not name.endswith("_rps")
    }
    # The names that programs read.
    fields["num_walked"] = fields.pop("num_simulated")
    fields["walked_s"] = fields.pop("simulated_s")
    fields["latencies"] = {
        latency.name.lower(): {
            f"p{100 * outlook.quantile:g}_ms": asdict(latency.predicted_ms),
            "target_ms": latency.target_ms,
            "is_met": latency.is_met,
        }
        for latency in outlook.latencies
    }
    return fields


def _left_out(answer: PlanAnswer) -> str:
    """Never a footnote: all other numbers leave these requests out."""
    plan, count = answer.plan, len(answer.trace.requests)
    longest = plan.memory.longest(answer.service.spec.engine.max_model_len)
    share = plan.num_left_out / count
    return (
        f"✗ {plan.num_left_out:,} of {count:,} requests ({share:.1%}) are longer than"
        f" {longest:,} tokens: refused, and left out here"
    )


def _verdict(plan: ServicePlan) -> Text:
    if plan.obstacle:
        return Text(
            f"✗ not achievable with any number of replicas: {plan.obstacle}: {plan.message}",
            style=_BAD,
        )
    outlook = plan.outlook
    assert outlook is not None  # noqa: S101 - only an obstacle leaves it out
    count = f"{outlook.replicas.value:.0f} replica{'s' if outlook.replicas.value > 1 else ''}"
    if not any(latency.target_ms for latency in outlook.latencies):
        return Text(f"✓ the peak asks for {count}; no SLA is declared", style=_GOOD)
    if any(latency.is_met is False for latency in outlook.latencies):
        return Text(f"✗ the peak's rate asks for {count}, but its bursts miss the SLA", style=_BAD)
    return Text(f"✓ predicted to keep the SLA through the peak: {count}", style=_GOOD)


def _service(outlook: Outlook) -> Table:
    limits = outlook.limits
    replicas = f"{outlook.replicas.value:.0f}"
    for_bursts = (
        f"; by rate {outlook.rate_replicas}, the rest for bursts"
        if outlook.replicas.value > outlook.rate_replicas
        else ""
    )
    target = (
        "" if limits.step_target_ms is None else f"; steps paced to {_ms(limits.step_target_ms)}"
    )
    rows = [
        (
            "capacity of a pod",
            _rate(outlook.capacity_rps),
            f"{outlook.demand.prompt:,.0f} prompt + {outlook.demand.output:,.0f} output tokens",
        ),
        (
            "peak of the trace",
            _rate(outlook.peak_rps),
            f"busiest minute; {outlook.mean_rps:.3g} on average",
        ),
        (
            "replicas",
            f"{replicas} {_bar(outlook.replicas, '.0f')}",
            f"with 15 % headroom{for_bursts}",
        ),
        (
            "max batch size",
            f"{limits.batch_size}",
            f"{limits.batch_bound} binds; KV memory alone: {limits.kv_batch_size:,}",
        ),
        ("token budget", f"{limits.token_budget:,}", f"tokens in a step{target}"),
    ]
    if (cost := outlook.cost) is not None:
        full, mean = significant(cost.at_capacity), significant(cost.by_trace)
        rows.append(("cost of 1M tokens", full, f"of output, by full pods; {mean} over the trace"))
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _latencies(outlook: Outlook) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(f"p{100 * outlook.quantile:g}")
    table.add_column("predicted", justify="right")
    table.add_column("low .. high", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    for latency in outlook.latencies:
        predicted = latency.predicted_ms
        table.add_row(
            latency.name,
            Text(_ms(predicted.value), style="bold"),
            f"{_ms(predicted.low)} .. {_ms(predicted.high)}",
            "-" if latency.target_ms is None else _ms(latency.target_ms),
            _compared(latency),
        )
    kept = outlook.attainment
    table.add_row("attainment", f"{kept.value:.1%}", f"{kept.low:.1%} .. {kept.high:.1%}", "", "")
    return table


def _compared(latency: Latency) -> Text:
    if latency.target_ms is None:
        return Text("")
    if not latency.is_met:
        return Text(f"✗ {latency.predicted_ms.value / latency.target_ms:.1f} times", style=_BAD)
    if latency.predicted_ms.high > latency.target_ms:
        return Text("✓ met, not surely", style=_GOOD)
    return Text("✓ met", style=_GOOD)


def _lines(answer: PlanAnswer) -> tuple[Line, ...]:
    plan, max_model_len = answer.plan, answer.service.spec.engine.max_model_len
    lines = plan.memory.arithmetic()
    if plan.outlook is None or plan.outlook.limits.kv_batch_size == 0:
        return lines
    outlook, tokens = plan.outlook, plan.memory.tokens
    return (
        *lines,
        occupancy_line(outlook.demand, batch=outlook.limits.kv_batch_size, tokens=tokens),
        *sequence_lines(
            kv_tokens=tokens,
            longest=plan.memory.longest(max_model_len),
            preallocated=outlook.limits.preallocated_batch_size,
            last=outlook.last_blocks,
        ),
    )


def _arithmetic(answer: PlanAnswer) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    table.add_column()
    table.add_column(style="dim")
    table.add_column(justify="right")
    for line in _lines(answer):
        table.add_row(line.label, line.working, line.result)
    return table


def _rate(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} req/s {_bar(estimate, '.3g')}"


def _bar(estimate: Estimate, digits: str) -> str:
    return f"({estimate.low:{digits}} .. {estimate.high:{digits}})"


def _ms(value: float) -> str:
    if value >= _SECONDS_FROM_MS:
        return f"{value / 1e3:,.0f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"  # noqa: PLR2004 - three digits


def _span(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 120 else f"{seconds:.0f} s"  # noqa: PLR2004 - two minutes
