"""`paceline explain`, on the command line."""

from pathlib import Path

import click


@click.command()
@click.argument("targets", nargs=-1)
@click.option("--last", type=click.IntRange(1), default=3, show_default=True, help="Decisions.")
@click.option("-n", "--namespace", help="Read from a cluster: the service's namespace.")
@click.option("--kubeconfig", help="Kubeconfig of the cluster to read from.")
@click.option(
    "--export",
    "export",
    type=click.Path(path_type=Path),
    help="Write a manifest that holds the tuned limits (mode Fixed), with the reason for each.",
)
def explain(
    targets: tuple[str, ...],
    last: int,
    namespace: str | None,
    kubeconfig: str | None,
    export: Path | None,
) -> None:
    """Say why the limits are what they are: explain [NAME] [pod/X]."""
    pods = [target.removeprefix("pod/") for target in targets if target.startswith("pod/")]
    names = [target for target in targets if not target.startswith("pod/")]
    if len(pods) > 1 or len(names) > 1:
        raise click.UsageError("name one service and one pod at most")
    name, pod = next(iter(names), None), next(iter(pods), None)
    if namespace or kubeconfig:
        if name is None:
            raise click.UsageError("with --namespace or --kubeconfig, name the service")
        from paceline_cli.explain.service_status import explain_status, read_service

        resource = read_service(name, namespace=namespace or "default", kubeconfig=kubeconfig)
        click.echo(explain_status(resource, pod))
        if export is not None:
            from paceline_cli.explain.export import fixed_manifest, tuned_in_cluster

            _write(export, fixed_manifest(resource, tuned_in_cluster(resource, pod)))
        return
    from paceline_cli import local_state
    from paceline_cli.explain.decisions import explain_state
    from paceline_cli.place import state_dir

    state = local_state.find(state_dir(), name)
    click.echo(explain_state(state, pod, last=last))
    if export is not None:
        from paceline_cli.explain.export import fixed_manifest, tuned_here
        from paceline_cli.manifest import declared

        _write(export, fixed_manifest(declared(Path(state.manifest)), tuned_here(state, pod)))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise click.ClickException(f"{path}: {problem.strerror}") from problem
    click.echo(f"\nwrote {path}")
