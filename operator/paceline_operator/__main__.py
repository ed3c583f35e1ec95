"""`python -m paceline_operator`: settings, web server, kopf."""

import asyncio
import logging
import signal

import kopf
from aiohttp import web

# Importing them registers kopf's handlers.
from paceline_operator import handlers, login  # noqa: F401
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.settings import OperatorSettings
from paceline_operator.web import create_app


async def run(settings: OperatorSettings) -> None:
    """Serve probes from the first moment, then watch until a signal comes."""
    operation = Operation(settings, Metrics())
    runner = web.AppRunner(create_app(operation), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await kopf.operator(
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            standalone=True,
            memo=operation,
            stop_flag=stop,
        )
    finally:
        await runner.cleanup()


def main() -> None:
    """Run until SIGTERM."""
    settings = OperatorSettings()
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
