"""The `paceline` command: plan, up, chat, explain, diagnose, demo, bench.

A command imports what it runs when it runs: its help needs none of it and starts at once.
"""

from typing import Any

import click

from paceline_cli.bench.command import bench
from paceline_cli.chat.command import chat
from paceline_cli.demo.command import demo
from paceline_cli.diagnose.command import diagnose
from paceline_cli.errors import BadInputError, LocalError
from paceline_cli.explain.command import explain
from paceline_cli.plan.command import plan
from paceline_cli.up.command import up


class Commands(click.Group):
    """Shows a LocalError as a sentence, never as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BadInputError as problem:
            raise click.UsageError(str(problem)) from problem
        except LocalError as problem:
            raise click.ClickException(str(problem)) from problem


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paceline")
def main() -> None:
    """Serve a language model on this machine and keep its declared p99 SLA."""


for command in (up, chat, explain, plan, diagnose, bench, demo):
    main.add_command(command)


if __name__ == "__main__":
    main()
