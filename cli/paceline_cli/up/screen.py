"""What a person sees of a running service: a live table, or one line where there is no terminal."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from paceline_api.units import significant
from paceline_cli.sla_targets import all_targets
from paceline_cli.up.loading import LoadingStage, loading_stage
from paceline_tuner.service_report import LimitsChange, MeasuredLatency, PodReport, ServiceReport
from paceline_tuner.service_spec import TuningSpec

_VERDICT_STYLES: Final = {
    "Meeting": "bold bright_blue",
    "Violating": "bold dark_orange",
}  # blue and orange: told apart by every eye


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything that is shown at one moment."""

    name: str
    model: str
    url: str
    spec: TuningSpec
    state: str
    """`loading the model`, `serving`, …"""
    report: ServiceReport | None
    events: tuple[str, ...] = ()
    """The newest happenings, oldest first."""
    banner: str = ""
    """What the demo does now."""
    client: MeasuredLatency | None = None
    """The demo's own measurement, at the client."""
    page_url: str = ""
    """The same as a page in the browser; empty without one."""

    @property
    def pod(self) -> PodReport | None:
        """The one pod of a local service."""
        return self.report.pods[0] if self.report and self.report.pods else None


def screen(view: LiveView) -> RenderableType:
    """Lay out the whole view."""
    parts: list[RenderableType] = []
    if view.banner:
        parts += [Text(view.banner, style="bold"), Text()]
    if (loading := loading_stage(view.state)) is not None:
        parts += [_progress(loading), Text()]
    parts += [_targets(view), Text(), _limits(view)]
    if rates := throughput_line(view.report):
        parts += [Text(), Text.assemble(("given  ", "dim"), rates)]
    change = view.pod.last_change if view.pod else None
    if change:
        parts += [Text(), Text.assemble(("last change  ", "dim"), change_line(change))]
    if view.events:
        parts += [Text(), *(Text(event, style="dim") for event in view.events)]
    if view.page_url:
        parts += [Text(), Text.assemble(("in the browser  ", "dim"), view.page_url)]
    return Panel(
        Group(*parts),
        title=f"[b]paceline[/b] · {view.name} · {view.model}",
        title_align="left",
        subtitle=f"{view.url}/v1 · {'loading the model' if loading else view.state}",
        subtitle_align="right",
        border_style="dim",
        width=100,
        padding=(1, 2),
    )


def line(view: LiveView) -> str:
    """One line for a log."""
    pod = view.pod
    if pod is None:
        return f"{view.name}: {view.state}"
    metrics = ", ".join(
        f"{name} {pod.observed.promised.name} {_ms(seen)} of {_ms(target)}"
        for name, target, seen in all_targets(view.spec.sla, pod.observed)
        if target is not None
    )
    limits = f"batch {_number(pod.batch_size)}, tokens {_number(pod.token_budget)}"
    target = f", step {_ms(pod.step_target_ms)}" if pod.step_target_ms is not None else ""
    load = f"{pod.running} running, {pod.waiting} waiting"
    rates = throughput_line(view.report)
    state = f"{pod.phase} ({pod.binding})"
    load = f"{load}; {rates}" if rates else load
    return f"{view.name}: {pod.verdict}: {metrics}; {limits}{target}; {load}; {state}"


def throughput_line(report: ServiceReport | None) -> str:
    """`412 output tokens/s, 3.10 requests/s`, and the cost where there is a price."""
    if report is None or report.throughput is None:
        return ""
    given, cost = report.throughput, report.cost
    told = f"{significant(given.output_tps)} output tokens/s"
    told += f", {significant(given.finished_rps)} requests/s"
    if cost is not None:
        told += f", {significant(cost.per_million_output)} for 1M output tokens"
    return told


def change_line(change: LimitsChange) -> str:
    """`12:03:04  batch 32 → 16, tokens 2048 → 192: why`."""
    moves = [
        f"{name} {before} → {after}"
        for name, before, after in (
            ("batch", change.from_batch_size, change.to_batch_size),
            ("tokens", change.from_token_budget, change.to_token_budget),
        )
        if before != after
    ]
    return f"{clock_time(change.at)}  {', '.join(moves) or 'step target'}: {change.reason}"


def clock_time(at: float) -> str:
    """Local time of day."""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def _progress(loading: LoadingStage) -> Progress:
    shown = Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    shown.add_task(loading.name, total=100, completed=round(100 * loading.fraction))
    return shown


def _targets(view: LiveView) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    unseen = MeasuredLatency(None, None, None, 0, None)
    seen = view.pod.observed if view.pod else unseen
    table.add_column(f"p{100 * view.spec.sla.objective:g}")
    for header in ("target", f"last {view.spec.window_s:.0f} s"):
        table.add_column(header, justify="right")
    table.add_column("")
    if view.client:
        table.add_column("client, last 20 s", justify="right")
    client = view.client or unseen
    at_client = {name: value for name, _, value in all_targets(view.spec.sla, client)}
    for name, target, value in all_targets(view.spec.sla, seen):
        cells: list[str | Text] = [name, _ms(target), _ms(value), _compared(value, target)]
        if view.client:
            cells.append(_ms(at_client.get(name)))
        table.add_row(*cells)
    attainment = "-" if seen.attainment is None else f"{seen.attainment:.1%}"
    table.add_row("attainment", f"{view.spec.sla.objective:.1%}", attainment, _samples(seen))
    return table


def _limits(view: LiveView) -> Table:
    pod = view.pod
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for header in ("batch", "tokens", "step", "running", "waiting"):
        table.add_column(header, justify="right")
    for header in ("mode", "phase", "binding", "verdict"):
        table.add_column(header)
    if pod is None:
        table.add_row(*["-"] * 5, view.spec.mode, "-", "-", "-")
    else:
        table.add_row(
            _number(pod.batch_size),
            _number(pod.token_budget),
            _ms(pod.step_target_ms),
            str(pod.running),
            str(pod.waiting),
            view.spec.mode,
            pod.phase,
            pod.binding,
            Text(pod.verdict, style=_VERDICT_STYLES.get(pod.verdict, "dim")),
        )
    return table


def _compared(value: float | None, target: float | None) -> Text:
    if target is None or value is None:
        return Text("")
    if value <= target:
        return Text("✓ met", style=_VERDICT_STYLES["Meeting"])
    return Text(f"✗ {value / target:.1f} times the target", style=_VERDICT_STYLES["Violating"])


def _samples(observed: MeasuredLatency) -> Text:
    return Text(f"of {observed.samples} requests" if observed.samples else "", style="dim")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
