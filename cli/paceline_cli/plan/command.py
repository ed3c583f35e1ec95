"""`paceline plan`, on the command line."""

import re
import sys
from pathlib import Path
from typing import Final, Literal

import click

_SCALES: Final = {
    "": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12,
    "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
}  # fmt: skip
_COUNT: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<scale>[A-Za-z]*)")


def count(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read a number with a scale: `8B`, `131072`, `80GiB`."""
    if value is None:
        return None
    match = _COUNT.fullmatch(value.strip())
    scale = _SCALES.get(match["scale"].upper()) if match else None
    if match is None or scale is None or float(match["number"]) == 0:
        raise click.BadParameter(f"{value!r} is no number such as 8B, 131072 or 80GiB", param=param)
    return round(float(match["number"]) * scale)


@click.command()
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="InferenceService."
)
@click.option(
    "--traffic",
    type=click.Path(path_type=Path),
    required=True,
    help="A trace: Azure or BurstGPT as CSV, Mooncake as JSON lines.",
)
@click.option("--gpu", help="Such as h100; the CPU if absent and the manifest asks for no GPU.")
@click.option(
    "--gpu-memory",
    metavar="NUMBER",
    callback=count,
    help="Memory of a GPU that is not known, such as 48GiB.",
)
@click.option(
    "--params",
    metavar="NUMBER",
    callback=count,
    help="Parameters of a model that is not here, such as 8B.",
)
@click.option(
    "--kv-bytes", metavar="NUMBER", callback=count, help="Its KV bytes per token, such as 131072."
)
@click.option(
    "--embedding-params",
    metavar="NUMBER",
    callback=count,
    help="How many of --params are of embedding and head, which are whole in each rank and never"
    " quantised; assumed if absent.",
)
@click.option(
    "--draft-params",
    metavar="NUMBER",
    callback=count,
    help="Parameters of a draft model that is not here, such as 1B.",
)
@click.option(
    "--draft-kv-bytes",
    metavar="NUMBER",
    callback=count,
    help="Its KV bytes per token, such as 32768.",
)
@click.option(
    "--memory",
    type=click.Path(path_type=Path),
    help="What the tuner remembers: its ConfigMap as JSON or YAML, or a local memory file.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
def plan(  # noqa: PLR0917 - click passes them by name
    path: Path,
    traffic: Path,
    gpu: str | None,
    gpu_memory: int | None,
    params: int | None,
    kv_bytes: int | None,
    embedding_params: int | None,
    draft_params: int | None,
    draft_kv_bytes: int | None,
    memory: Path | None,
    output: Literal["text", "json"],
) -> None:
    """Predict capacity, limits, replicas and p99 of a manifest for a trace; nothing is started.

    Exits with 3 where no number of replicas is predicted to keep the SLA.
    """
    from rich.console import Console

    from paceline_cli.plan.answer import UNACHIEVABLE_EXIT, answer
    from paceline_cli.plan.model_sizes import PlanQuestion
    from paceline_cli.plan.screen import WIDTH, as_json, screen

    found = answer(
        PlanQuestion(
            path,
            traffic,
            gpu,
            gpu_memory,
            params,
            kv_bytes,
            memory,
            embedding_params=embedding_params,
            draft_params=draft_params,
            draft_kv_bytes=draft_kv_bytes,
        )
    )
    if output == "json":
        click.echo(as_json(found))
    else:
        console = Console()
        # In a pipe there is no terminal whose width would count.
        (console if console.is_terminal else Console(width=WIDTH)).print(screen(found))
    sys.exit(UNACHIEVABLE_EXIT if found.plan.obstacle else 0)
