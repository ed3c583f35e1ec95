"""`paceline bench machines`: sweeps of one service on several machines, as one table."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from paceline_cli.bench.cells import LEGEND
from paceline_cli.bench.measures import NAMES
from paceline_cli.bench.sweep_points import Sweep
from paceline_cli.bench.sweep_report import device_row
from paceline_cli.errors import BadInputError

_LEAST_WIDTH = 150


def machines(sweeps: Sequence[Sweep]) -> Group:
    """Set them side by side at the tuner's own point. Raises BadInputError."""
    models = sorted({sweep.model for sweep in sweeps})
    if len(models) > 1:
        raise BadInputError(
            f"sweeps of {' and '.join(models)} say nothing of their machines: give those of one"
        )
    made = Table(title=f"{models[0]}; latency in ms", title_justify="left")
    for head in ("machine", "knee", "tuner's choice"):
        made.add_column(head)
    for head in ("attainment %", "goodput tok/s", "all tok/s", *(f"{name} p99" for name in NAMES)):
        made.add_column(head, justify="right", no_wrap=True)
    rows = [device_row(sweep) for sweep in sweeps]
    for row in rows:
        cells = (row.attainment, row.goodput, row.tokens_per_s, *row.cells)
        chosen = row.chosen.replace(", ", "\n")
        made.add_row(row.device, row.knee, chosen, *(cell.replace(" (", "\n(") for cell in cells))
    loads = [Text(f"{row.device}: {row.traffic}") for row in rows]
    return Group(made, *loads, Text(LEGEND))


def show_machines(sweeps: Sequence[Sweep], console: Console) -> None:
    """Print the table, as wide as it needs to be."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(machines(sweeps))
