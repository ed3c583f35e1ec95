"""Several services side by side, such as those of a pipeline: which one is the slowest. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline_api.units import significant
from paceline_cli.diagnose.advice import ms
from paceline_cli.diagnose.diagnosis import Diagnosis
from paceline_cli.diagnose.engine_time import Bound
from paceline_cli.diagnose.screen import BOUNDS


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """The time of one service, for a request that goes through all services in turn."""

    name: str
    requests_per_s: float
    mean_e2e_ms: float | None
    """None where no request was answered in the window."""
    share: float | None
    """Its mean as a share of the sum of all means."""
    bound: Bound


@dataclass(frozen=True, slots=True)
class SideBySide:
    """All services over one window."""

    window_s: float
    services: tuple[ServiceTime, ...]
    slowest: str | None
    """The name of the largest share; None where nothing was answered."""


def side_by_side(found: Mapping[str, Diagnosis]) -> SideBySide:
    """Compare mean end-to-end latencies, by the name of each service, in the given order."""
    means = {name: each.mean_e2e_ms for name, each in found.items()}
    known = {name: mean for name, mean in means.items() if mean is not None}
    whole_ms = sum(known.values())
    return SideBySide(
        window_s=max(each.window_s for each in found.values()),
        services=tuple(
            ServiceTime(
                name=name,
                requests_per_s=each.throughput.finished_rps,
                mean_e2e_ms=means[name],
                share=known[name] / whole_ms if name in known and whole_ms > 0 else None,
                bound=each.time.bound,
            )
            for name, each in found.items()
        ),
        slowest=max(known, key=lambda name: known[name], default=None),
    )


def as_json(compared: SideBySide) -> str:
    """Format the comparison as JSON, for a program."""
    return json.dumps(asdict(compared), indent=2)


def screen(compared: SideBySide) -> RenderableType:
    """Lay out a row for each service, and name the slowest."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("service", style="dim", overflow="fold")
    for title in ("requests/s", "mean end to end", "of the sum"):
        table.add_column(title, justify="right")
    table.add_column("bound")
    for each in compared.services:
        table.add_row(
            Text(each.name, style="bold" if each.name == compared.slowest else ""),
            significant(each.requests_per_s),
            "-" if each.mean_e2e_ms is None else ms(each.mean_e2e_ms),
            "-" if each.share is None else f"{each.share:.0%}",
            each.bound,
        )
    return Group(table, Text(), _sentence(compared))


def _sentence(compared: SideBySide) -> Text:
    by_name = {each.name: each for each in compared.services}
    if compared.slowest is None:
        return Text(f"no request was answered in the last {compared.window_s:.0f} s", style="dim")
    slowest = by_name[compared.slowest]
    return Text.assemble(
        (slowest.name, "bold"),
        f" is the slowest: {slowest.share or 0.0:.0%} of the sum;",
        f" it is bound by {BOUNDS[slowest.bound]}",
    )
