"""A run's report: tables on the terminal, one HTML file that needs nothing else, and JSON."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline_cli.bench.cells import LEGEND, headline_rows, latency_cells
from paceline_cli.bench.document import RunResult, as_json
from paceline_cli.bench.measures import SHARES, label
from paceline_cli.bench.run_plots import distributions, over_time
from paceline_cli.bench.trial import Trial
from paceline_cli.pages import rendered
from paceline_cli.plot_style import svg
from paceline_cli.traffic.record import ClientRecord
from paceline_tuner.service_spec import SLA

_WIDTH = 132
"""A file or a pipe has no width of its own."""
HEADS = ("mean", *map(label, SHARES), "max")


@contextmanager
def progress(
    console: Console, total: int, what: str = ""
) -> Iterator[Callable[[ClientRecord], None]]:
    """Show how many requests of `what` have ended, inside the block."""
    ended = f"{what}: ended" if what else "ended"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(ended, total=total)
        unanswered = 0

        def on_record(record: ClientRecord) -> None:
            nonlocal unanswered
            unanswered += record.outcome not in {"ok", "cancelled"}
            shown.update(task, advance=1, description=f"{ended}, {unanswered} of them unanswered")

        yield on_record


def show(result: RunResult, console: Console) -> None:
    """Print attainment and goodput first, then throughput, then latencies in a table apart."""
    first = Table(show_header=False, box=None, pad_edge=False)
    for name, text in headline_rows(result.measures):
        first.add_row(name, text)
    console.print(first)
    table = Table(title="Latency (ms)", title_justify="left")
    table.add_column("")
    for head in (*HEADS, "target"):
        table.add_column(head, justify="right")
    for latency in result.measures.latencies:
        cells = [cell.replace(" (", "\n(") for cell in latency_cells(latency)]
        table.add_row(latency.name, *cells, target_cell(result.sla, latency.name))
    console.width = max(console.width, _WIDTH)
    console.print(table)
    for text in dict.fromkeys((result.warmup, result.client.sentence, *result.notes, LEGEND)):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def write_report(result: RunResult, trial: Trial, folder: Path) -> Path:
    """Write `run.html`, `run.json` and `requests.jsonl`; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(as_json(result), encoding="utf-8")
    (folder / "requests.jsonl").write_text(request_lines(trial), encoding="utf-8")
    page = folder / "run.html"
    page.write_text(
        rendered(
            "bench/run.html.j2",
            result=result,
            headline=headline_rows(result.measures),
            heads=(*HEADS, "target"),
            rows=[
                (each.name, [*latency_cells(each), target_cell(result.sla, each.name)])
                for each in result.measures.latencies
            ],
            legend=LEGEND,
            over_time_svg=svg(over_time(trial, result.sla)),
            distributions_svg=svg(distributions(trial, result.sla)),
        ),
        encoding="utf-8",
    )
    return page


def request_lines(trial: Trial) -> str:
    """Every request as a trace that `--trace` reads, with what became of it."""
    return "".join(
        json.dumps(
            {
                "arrived_at": round(record.planned_at - trial.records[0].planned_at, 6),
                "prompt_tokens": record.prompt_tokens,
                "output_tokens": record.output_tokens,
                "outcome": record.outcome,
                "ttft_ms": record.ttft_ms,
                "tpot_ms": record.tpot_ms,
                "is_warmup": record.planned_at < trial.start_at,
            }
        )
        + "\n"
        for record in trial.records
    )


def target_cell(sla: SLA, name: str) -> str:
    """The declared target of one latency; the classes' own where it has several."""
    if name == "TTFT" and sla.ttft_by_prompt_tokens:
        return "by prompt length"
    target = target_ms(sla, name)
    return "-" if target is None else f"{target:,.0f}"


def target_ms(sla: SLA, name: str) -> float | None:
    """The declared target of one latency."""
    return {
        "TTFT": sla.ttft_p99_ms,
        "TPOT": sla.tpot_p99_ms,
        "ITL": sla.itl_p99_ms,
        "E2E": sla.e2e_p99_ms,
    }[name]
