"""`paceline explain`, on the command line."""

import click


@click.command()
@click.argument("targets", nargs=-1)
@click.option("--last", type=click.IntRange(1), default=3, show_default=True, help="Decisions.")
@click.option("-n", "--namespace", help="Read from a cluster: the service's namespace.")
@click.option("--kubeconfig", help="Read from this cluster.")
def explain(
    targets: tuple[str, ...], last: int, namespace: str | None, kubeconfig: str | None
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
        return
    from paceline_cli import local_state
    from paceline_cli.explain.decisions import explain_state
    from paceline_cli.place import state_dir

    click.echo(explain_state(local_state.find(state_dir(), name), pod, last=last))
