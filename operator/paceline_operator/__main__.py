"""`python -m paceline_operator`: settings, web server, kopf."""

import asyncio
import logging
import sys

import kopf
from aiohttp import web

from paceline_operator import (
    garbage,
    handlers,  # noqa: F401 - importing it registers kopf's handlers
)
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.settings import OperatorSettings
from paceline_operator.web import create_app


async def run(settings: OperatorSettings) -> str:
    """Serve probes from the first moment, then watch until SIGTERM, which kopf handles.

    Returns what ended it earlier, or nothing.
    """
    operation = Operation(settings, Metrics())
    runner = web.AppRunner(create_app(operation), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    try:
        await kopf.operator(
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            standalone=True,
            memo=operation,
            stop_flag=operation.ended,
        )
    finally:
        await runner.cleanup()
    return operation.broken


def main() -> None:
    """Run until SIGTERM; exit with an error where a new process must take over."""
    settings = OperatorSettings()
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    # One line per event and handler, even when nothing was to be done.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    garbage.look_seldom()
    if broken := asyncio.run(run(settings)):
        sys.exit(broken)


if __name__ == "__main__":
    main()
