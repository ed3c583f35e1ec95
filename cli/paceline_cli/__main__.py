"""The `paceline` command: plan, up, chat, explain, diagnose, demo, bench."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console

from paceline_cli import local_state as state
from paceline_cli.bench.command import bench
from paceline_cli.chat.answer import ChatError, Message, served_model, stream_answer
from paceline_cli.demo.demo import Demo, run_demo
from paceline_cli.diagnose.command import diagnose_command
from paceline_cli.errors import LocalError
from paceline_cli.explain.explain import explain
from paceline_cli.kubectl import explain_status, read_service
from paceline_cli.place import memory_file, state_dir
from paceline_cli.plan.command import plan_command
from paceline_cli.run import run
from paceline_cli.terminal import shown
from paceline_cli.up.serving import serving
from paceline_cli.up.tuner import local_tuner


class Commands(click.Group):
    """Shows a LocalError as a sentence, never as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except LocalError as problem:
            raise click.ClickException(str(problem)) from problem


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paceline")
def main() -> None:
    """Serve a language model on this machine and keep its declared p99 SLA."""


main.add_command(plan_command)
main.add_command(bench)
main.add_command(diagnose_command)


@main.command()
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="InferenceService."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Of the OpenAI API; a free one if absent."
)
def up(path: Path, port: int | None) -> None:
    """Serve the manifest FILE until Ctrl-C; edit the file to change the SLA while it serves."""
    run(_up(path, port))


async def _up(path: Path, port: int | None) -> None:
    async with (
        local_tuner(memory_file()) as tuner,
        serving(path, port=port, tuner=tuner, folder=state_dir()) as live,
    ):
        with shown(Console(), live):
            await asyncio.Event().wait()


@main.command()
@click.argument("name", required=False)
@click.option("--url", help="Of any OpenAI-compatible server, instead of a local service.")
@click.option("--api-key", envvar="PACELINE_API_KEY", help="Sent as a bearer token.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True)
def chat(
    name: str | None, url: str | None, api_key: str | None, max_tokens: int, temperature: float
) -> None:
    """Talk to the local service NAME. Reads one message from a pipe, or converses."""
    base_url = (url or state.find(state_dir(), name).url).rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=httpx.Timeout(300.0)) as client:
        model = served_model(client)
        if not sys.stdin.isatty():
            _answer(client, model, [_user(sys.stdin.read())], max_tokens, temperature)
            return
        click.echo(f"{model} at {base_url}. An empty line or Ctrl-D ends.")
        messages: list[Message] = []
        while text := _next_line():
            try:
                answer = _answer(client, model, [*messages, _user(text)], max_tokens, temperature)
            except ChatError as problem:
                click.echo(f"{problem}", err=True)
            else:
                messages += [_user(text), {"role": "assistant", "content": answer}]


def _next_line() -> str:
    try:
        return str(click.prompt(">", default="", prompt_suffix=" ", show_default=False))
    except click.Abort:  # Ctrl-D
        return ""


def _answer(
    client: httpx.Client, model: str, messages: list[Message], max_tokens: int, temperature: float
) -> str:
    pieces = []
    for piece in stream_answer(
        client, model, messages, max_tokens=max_tokens, temperature=temperature
    ):
        click.echo(piece, nl=False)
        pieces.append(piece)
    click.echo()
    return "".join(pieces)


def _user(text: str) -> Message:
    return {"role": "user", "content": text.strip()}


@main.command(name="explain")
@click.argument("targets", nargs=-1)
@click.option("--last", type=click.IntRange(1), default=3, show_default=True, help="Decisions.")
@click.option("-n", "--namespace", help="Read from a cluster: the service's namespace.")
@click.option("--kubeconfig", help="Read from this cluster.")
def explain_command(
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
        resource = read_service(name, namespace=namespace or "default", kubeconfig=kubeconfig)
        click.echo(explain_status(resource, pod))
        return
    click.echo(explain(state.find(state_dir(), name), pod, last=last))


@main.command()
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
@click.option("--seed", type=int, default=1, show_default=True, help="Of the traffic.")
@click.option("--svg", type=click.Path(path_type=Path), help="Save the table's last look here.")
@click.option("--png", type=click.Path(path_type=Path), help="Save the main plot here.")
def demo(path: Path, out: Path, seed: int, svg: Path | None, png: Path | None) -> None:
    """Violate an SLA under bursty load, let the tuner bring it back, and write a report."""
    options = Demo(manifest=path, out=out, seed=seed, svg=svg, png=png)
    verdict = run(run_demo(options, Console()))
    click.echo(verdict.sentence)
    sys.exit(0 if verdict.holds else 1)


if __name__ == "__main__":
    main()
