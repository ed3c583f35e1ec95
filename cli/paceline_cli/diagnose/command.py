"""`paceline diagnose`, on the command line."""

from contextlib import AbstractAsyncContextManager
from contextlib import nullcontext as opened
from pathlib import Path
from typing import Final, Literal

import click
from rich.console import Console

from paceline_cli.diagnose.diagnose import Diagnosis, UndiagnosableError, diagnose
from paceline_cli.diagnose.screen import WIDTH, as_json, screen
from paceline_cli.errors import LocalError
from paceline_cli.place import state_dir
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.port_forward import cluster_pod, local_pod
from paceline_cli.run import run
from paceline_tuner.pods import PodError
from paceline_tuner.service_target import PodTarget

_TIMEOUT_S: Final = 20.0


class DiagnoseError(LocalError):
    """The pod could not be asked, or has nothing to judge by."""


@click.command(name="diagnose")
@click.argument("targets", nargs=-1)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 3600),
    default=60.0,
    show_default=True,
    help="How far to look back.",
)
@click.option("-n", "--namespace", help="Of a service in a cluster.")
@click.option("--kubeconfig", help="Of this cluster.")
@click.option("--url", help="Of a pod's runtime API that you forward yourself; with --token-file.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Bearer token of that runtime API."
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
def diagnose_command(  # noqa: PLR0917 - click passes them by name
    targets: tuple[str, ...],
    seconds: float,
    namespace: str | None,
    kubeconfig: str | None,
    url: str | None,
    token_file: Path | None,
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
    door: AbstractAsyncContextManager[PodTarget]
    if url is not None and token_file is not None:
        door = opened(PodTarget(url, url, _token(token_file)))
    elif in_cluster and name is not None:
        door = cluster_pod(name, pod, namespace=namespace or "default", kubeconfig=kubeconfig)
    else:
        door = opened(local_pod(state_dir(), name))
    pod_name, found = run(_diagnose(door, seconds))
    if output == "json":
        click.echo(as_json(pod_name, found))
        return
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(screen(pod_name, found))


async def _diagnose(
    door: AbstractAsyncContextManager[PodTarget], seconds: float
) -> tuple[str, Diagnosis]:
    async with door as pod, HttpxPodClient(timeout_s=_TIMEOUT_S) as pods:
        try:
            telemetry = await pods.get_telemetry(pod, 0)
            return pod.name, diagnose(telemetry, window_s=seconds)
        except PodError as problem:
            raise DiagnoseError(str(problem)) from problem
        except UndiagnosableError as problem:
            raise DiagnoseError(f"{pod.name} cannot be diagnosed: {problem}") from problem


def _token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as problem:
        raise DiagnoseError(f"--token-file {path}: {problem.strerror}") from problem
