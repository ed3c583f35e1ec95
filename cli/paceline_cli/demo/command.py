"""`paceline demo`, on the command line."""

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path),
    default=Path("examples/quickstart.yaml"),
    show_default=True,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Folder.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the traffic.")
@click.option("--svg", type=click.Path(path_type=Path), help="Save the table's last look here.")
@click.option("--png", type=click.Path(path_type=Path), help="Save the main plot here.")
@click.option(
    "--json",
    "series_json",
    type=click.Path(path_type=Path),
    help="Save what the main plot draws here.",
)
@click.option(
    "--page/--no-page", default=True, show_default=True, help="Show it as a page in the browser."
)
def demo(
    path: Path,
    out: Path,
    seed: int,
    svg: Path | None,
    png: Path | None,
    *,
    series_json: Path | None,
    page: bool,
) -> None:
    """Violate an SLA under bursty load, let the tuner bring it back, and write a report."""
    from rich.console import Console

    from paceline_cli.demo.scenario import Demo, run_demo
    from paceline_cli.run import run

    options = Demo(
        manifest=path,
        out=out,
        seed=seed,
        svg=svg,
        png=png,
        series_json=series_json,
        has_page=page,
    )
    verdict = run(run_demo(options, Console()))
    click.echo(verdict.sentence)
    sys.exit(0 if verdict.holds else 1)
