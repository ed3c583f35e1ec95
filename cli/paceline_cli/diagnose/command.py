"""`paceline diagnose`, on the command line."""

from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("targets", nargs=-1)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 3600),
    default=60.0,
    show_default=True,
    help="How far to look back.",
)
@click.option("-n", "--namespace", help="Namespace of a service in a cluster.")
@click.option("--kubeconfig", help="Kubeconfig of the cluster to read from.")
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="Address of a runtime API that you forward yourself; with --token-file.",
)
@click.option(
    "--token-file",
    "token_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Bearer token of that runtime API.",
)
@click.option(
    "--price-per-hour",
    type=click.FloatRange(0, min_open=True),
    help="What the pod costs an hour; else what the service's resources.pricePerHour says.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
def diagnose(  # noqa: PLR0917 - click passes them by name
    targets: tuple[str, ...],
    seconds: float,
    namespace: str | None,
    kubeconfig: str | None,
    urls: tuple[str, ...],
    token_files: tuple[Path, ...],
    price_per_hour: float | None,
    output: Literal["text", "json"],
) -> None:
    """Say where latency comes from and what would help: diagnose [NAME...] [pod/X].

    Reads the live telemetry of one pod; nothing is changed. Of several services, named here or each
    by --url and --token-file, it compares the mean latency of one pod of each and names the
    slowest.
    """
    pods = [target.removeprefix("pod/") for target in targets if target.startswith("pod/")]
    names = [target for target in targets if not target.startswith("pod/")]
    if len(pods) > 1 or (pods and len(names) > 1):
        raise click.UsageError("name the one service of that one pod")
    if len(urls) != len(token_files):
        raise click.UsageError("--url and --token-file go together, one of each for a service")
    if price_per_hour is not None and max(len(names), len(urls)) > 1:
        raise click.UsageError("--price-per-hour is that of one service")
    if (namespace or kubeconfig) and not names:
        raise click.UsageError("with --namespace or --kubeconfig, name the service")
    from rich.console import Console

    from paceline_cli.diagnose import screen, side_by_side
    from paceline_cli.diagnose.pod import declared_price, diagnose_pod, diagnose_services, reached
    from paceline_cli.run import run

    forwarded = dict(zip(urls, token_files, strict=True))
    places = {"namespace": namespace, "kubeconfig": kubeconfig}
    services = reached(names, next(iter(pods), None), forwarded=forwarded, **places)
    if len(services) > 1:
        compared = side_by_side.side_by_side(run(diagnose_services(services, seconds)))
        told, drawn = side_by_side.as_json(compared), side_by_side.screen(compared)
    else:
        ((name, service),) = services.items()
        if price_per_hour is None and not urls:
            price_per_hour = declared_price(name, **places)
        pod_name, found = run(diagnose_pod(service, seconds, price_per_hour))
        told, drawn = screen.as_json(pod_name, found), screen.screen(pod_name, found)
    if output == "json":
        click.echo(told)
        return
    console = Console()
    (console if console.is_terminal else Console(width=screen.WIDTH)).print(drawn)
