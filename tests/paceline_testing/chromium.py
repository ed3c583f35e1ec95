"""A real headless Chromium, driven over a pipe by its DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal

CHROMIUM: Final = shutil.which("chromium") or shutil.which("google-chrome")
_DEADLINE_S: Final = 120.0
"""Of one condition; generous, for machines with much else to do."""
_NAVIGATED: Final = "Inspected target navigated or closed"
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # tests of containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class NavigatedError(Exception):
    """The page went before it had answered; another is there, or soon will be."""


class Tab:
    """One tab of a browser."""

    def __init__(self, reader: asyncio.StreamReader, commands: int) -> None:
        """Read answers from `reader`; write to the pipe `commands`."""
        self._reader = reader
        self._commands = commands
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._parsed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Whether a document was read to its end, by its loader."""
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, what the browser refused."""

    async def read(self) -> None:
        """Take in what the browser says, until it ends."""
        while True:
            said = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    async def send(self, method: str, **parameters: object) -> Any:
        """Give a command and return its result."""
        number = next(self._ids)
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        said = await asyncio.wait_for(answer, _DEADLINE_S)
        if said.get("error", {}).get("message") == _NAVIGATED:
            raise NavigatedError(_NAVIGATED)
        assert "error" not in said, said
        return said["result"]

    async def open(self) -> None:
        """Make the tab, and have it tell its errors."""
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            await self.send(f"{domain}.enable")
        await self.send("Page.setLifecycleEventsEnabled", enabled=True)

    async def go(self, url: str) -> None:
        """Navigate, and wait until the page has its body."""
        loader = (await self.send("Page.navigate", url=url)).get("loaderId")
        if loader is None:
            return  # only the fragment has changed
        await asyncio.wait_for(self._parsed[loader].wait(), _DEADLINE_S)

    async def value(self, expression: str) -> Any:
        """Evaluate JavaScript in the page, awaiting a promise."""
        said = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return once a JavaScript condition holds, of whatever page is there then."""
        async with asyncio.timeout(_DEADLINE_S):
            while not await self._holds(condition):  # noqa: ASYNC110 - a page sets no event of ours
                await asyncio.sleep(0.03)

    async def _holds(self, condition: str) -> bool:
        try:
            return bool(await self.value(f"Boolean({condition})"))
        except NavigatedError:
            return False

    async def text(self, selector: str = "body") -> str:
        """Return what a person reads there."""
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def look(self, theme: Literal["light", "dark"], *, width: int = 1200) -> bytes:
        """Return a picture of the whole page, a PNG."""
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        await self.send("Emulation.setEmulatedMedia", features=scheme)
        for height in (900, None):
            tall = height or await self.value("document.documentElement.scrollHeight")
            await self.send(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=tall, deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
        picture = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(picture["data"])

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and said["name"] == "DOMContentLoaded":
            self._parsed[said["loaderId"]].set()
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in {"error", "warning"}:
            self.complaints.append(json.dumps(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(said["entry"]["text"])


@contextlib.asynccontextmanager
async def opened_tab() -> AsyncIterator[Tab]:
    """Run a browser with a profile of its own inside the block, which is given its one tab."""
    assert CHROMIUM is not None
    loop = asyncio.get_running_loop()
    to_child, commands = os.pipe()
    answers, from_child = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from 3 and writes to 4; bash puts the pipes there.
        script = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, CHROMIUM, *_FLAGS, f"--user-data-dir={profile}",
            pass_fds=(to_child, from_child),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"HOME": str(Path(profile))},
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        reader = asyncio.StreamReader(limit=1 << 26)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb")
        )
        tab = Tab(reader, commands)
        reading = loop.create_task(tab.read())
        try:
            await tab.open()
            yield tab
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
                await reading
            os.close(commands)  # it ends when nobody commands it any more
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 20)
            if process.returncode is None:
                process.kill()
                await process.wait()
            transport.close()
