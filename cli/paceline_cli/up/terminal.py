"""Shows a live service: a table that redraws itself in a terminal, plain lines anywhere else."""

import asyncio
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from paceline_cli.live_page.server import page_of
from paceline_cli.place import memory_file, state_dir
from paceline_cli.up.live import LiveService
from paceline_cli.up.screen import LiveView, line, screen
from paceline_cli.up.serving import local_tuner, serving

_REDRAWS_PER_SECOND = 2  # each costs some milliseconds of a core that the engine wants


async def serve_and_show(path: Path, port: int | None, *, has_page: bool = True) -> None:
    """Serve the manifest and show how it does, until this is cancelled."""
    async with (
        local_tuner(memory_file()) as tuner,
        serving(path, port=port, tuner=tuner, folder=state_dir()) as live,
        page_of(live) if has_page else contextlib.nullcontext(),
    ):
        with shown(Console(), live):
            await asyncio.Event().wait()


@contextlib.contextmanager
def shown(
    console: Console, live: LiveService, view: Callable[[], LiveView] | None = None
) -> Iterator[None]:
    """Show the service while the block runs."""
    current = view or live.view
    if console.is_terminal:
        with Live(
            get_renderable=lambda: screen(current()),
            console=console,
            refresh_per_second=_REDRAWS_PER_SECOND,
        ):
            yield
        return

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    live.on_event.append(lambda text: say(f"{live.name}: {text}"))
    live.on_loading.append(lambda text: say(f"{live.name}: {text}"))
    live.on_report.append(lambda _: say(line(current())))
    if live.page_url:
        say(f"{live.name}: in the browser at {live.page_url}")
    say(f"{live.name}: {live.phase} {live.service.spec.model.uri}")
    yield


def save_svg(view: LiveView, path: Path) -> None:
    """Save one look at the table as a picture."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(screen(view))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = console.export_svg(title="paceline demo")
    # A picture that loads no font from elsewhere: any monospace will do.
    path.write_text(
        re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8"
    )
