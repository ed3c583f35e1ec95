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
    "--url", help="Address of a runtime API that you forward yourself; with --token-file."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Bearer token of that runtime API."
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
    url: str | None,
    token_file: Path | None,
    price_per_hour: float | None,
    output: Literal["text", "json"],
) -> None:
    """Say where latency comes from and what would help: diagnose [NAME] [pod/X].

    Reads the live telemetry of one pod; nothing is changed.
    """
    pods = [target.removeprefix("pod/") for target in targets if target.startswith("pod/")]
    names = [target for target in targets if not target.startswith("pod/")]
    if len(pods) > 1 or len(names) > 1:
        raise click.UsageError("name one service and one pod at most")
    if (url is None) != (token_file is None):
        raise click.UsageError("--url and --token-file go together")
    name, pod = next(iter(names), None), next(iter(pods), None)
    in_cluster = bool(namespace or kubeconfig)
    if in_cluster and name is None:
        raise click.UsageError("with --namespace or --kubeconfig, name the service")
    from contextlib import nullcontext

    from rich.console import Console

    from paceline_cli import local_state
    from paceline_cli.diagnose.pod import diagnose_pod, forwarded_pod, price_in_cluster
    from paceline_cli.diagnose.screen import WIDTH, as_json, screen
    from paceline_cli.place import state_dir
    from paceline_cli.port_forward import cluster_pod, local_pod
    from paceline_cli.run import run

    if url is not None and token_file is not None:
        reached = forwarded_pod(url, token_file)
    elif in_cluster and name is not None:
        where = namespace or "default"
        reached = cluster_pod(name, pod, namespace=where, kubeconfig=kubeconfig)
        price_per_hour = price_per_hour or price_in_cluster(
            name, namespace=where, kubeconfig=kubeconfig
        )
    else:
        reached = nullcontext(local_pod(state_dir(), name))
        price_per_hour = price_per_hour or local_state.find(state_dir(), name).price_per_hour
    pod_name, found = run(diagnose_pod(reached, seconds, price_per_hour))
    if output == "json":
        click.echo(as_json(pod_name, found))
        return
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(screen(pod_name, found))
