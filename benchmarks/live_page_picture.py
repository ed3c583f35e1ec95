"""Take a picture of the live page of `paceline demo`, in its last seconds: `--out FILE`.

The demo runs as it does for a person, on the embedded model. The page keeps its history by itself,
so that the browser is opened only for the picture and takes no time from what is measured.
Needs `chromium`, and a machine that does nothing else.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from paceline_cli.demo.scenario import JUDGED_S, SETTLE_S
from paceline_page.content import Content
from paceline_testing.chromium import opened_tab

_WIDTH = 1300
_LEFT_S = 12.0
"""Of the demo, when the browser is opened."""


async def take(theme: Literal["light", "dark"]) -> tuple[bytes, int]:
    """Run the demo; return the picture, a PNG, and the demo's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        demo = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from paceline_cli.__main__ import main; main()",
            "demo", "--out", folder,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"XDG_STATE_HOME": folder},
        )  # fmt: skip
        assert demo.stdout is not None
        try:
            address = await _address(demo.stdout)
            rest = asyncio.create_task(demo.stdout.read())
            await _tuned(address)
            await asyncio.sleep(SETTLE_S + JUDGED_S - _LEFT_S)
            async with opened_tab() as tab:
                await tab.go(address)
                await tab.until("document.querySelectorAll('.latency').length >= 3")
                picture = await tab.look(theme, width=_WIDTH)
            print(*(await rest).decode().splitlines()[-3:], sep="\n")
        finally:
            if demo.returncode is None and sys.exc_info()[0] is not None:
                demo.terminate()
            status = await demo.wait()
    return picture, status


async def _address(lines: AsyncIterator[bytes]) -> str:
    async for line in lines:
        print(line.decode(), end="", flush=True)
        if found := re.search(r"in the browser at (\S+)", line.decode()):
            return found[1]
    raise SystemExit("the demo named no page")


async def _tuned(address: str) -> None:
    """Wait until the demo lets the tuner change limits."""
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("GET", f"{address}events") as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: "):
                shown = msgspec.json.decode(line.removeprefix("data: "), type=Content)
                if shown.banner.startswith("2 of 2"):
                    return
    raise SystemExit("the demo ended before it was tuned")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/live-page.png"))
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    started = time.monotonic()
    picture, status = asyncio.run(take(arguments.theme))
    arguments.out.write_bytes(picture)
    print(f"{arguments.out}: {time.monotonic() - started:.0f} s")
    sys.exit(status)
