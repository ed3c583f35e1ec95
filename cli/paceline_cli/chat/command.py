"""`paceline chat`, on the command line."""

import sys

import click


@click.command()
@click.argument("name", required=False)
@click.option("--url", help="Address of any OpenAI-compatible server, instead of a local service.")
@click.option("--api-key", envvar="PACELINE_API_KEY", help="Sent as a bearer token.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True)
def chat(
    name: str | None, url: str | None, api_key: str | None, max_tokens: int, temperature: float
) -> None:
    """Talk to the local service NAME. Reads one message from a pipe, or converses."""
    from paceline_cli import local_state
    from paceline_cli.chat.conversation import Conversation, client_of
    from paceline_cli.place import state_dir

    base_url = (url or local_state.find(state_dir(), name).url).rstrip("/").removesuffix("/v1")
    with client_of(base_url, api_key) as client:
        conversation = Conversation(client, max_tokens=max_tokens, temperature=temperature)
        conversation.run(sys.stdin)
