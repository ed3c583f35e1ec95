"""`paceline up`, on the command line."""

from pathlib import Path

import click


@click.command()
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="InferenceService."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the OpenAI API; a free one if absent."
)
@click.option(
    "--page/--no-page", default=True, show_default=True, help="Show it as a page in the browser."
)
def up(path: Path, port: int | None, *, page: bool) -> None:
    """Serve the manifest FILE until Ctrl-C; edit the file to change the SLA while it serves."""
    from paceline_cli.run import run
    from paceline_cli.up.terminal import serve_and_show

    run(serve_and_show(path, port, has_page=page))
