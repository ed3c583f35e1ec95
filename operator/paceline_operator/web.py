"""/healthz, /readyz, /metrics and /decisions of the operator itself.

Only /decisions asks for a token: it names services and pods and says how they are loaded.
"""

import hmac
import math
from dataclasses import asdict

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from paceline_operator.operation import Operation


def create_app(operation: Operation) -> web.Application:
    """Serve what probes, Prometheus and Grafana ask."""

    async def alive(_: web.Request) -> web.Response:
        if problem := operation.illness():
            return web.Response(status=500, text=f"{problem}\n")
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if not operation.has_started:
            problem = operation.start_problem or "not started yet"
            return web.Response(status=503, text=f"{problem}\n")
        if operation.probe is not None and (problem := operation.probe.problem()):
            return web.Response(status=503, text=f"{problem}\n")
        return web.Response(text="leading\n" if operation.is_leading else "standing by\n")

    async def metrics(_: web.Request) -> web.Response:
        operation.refresh_metrics()
        body = generate_latest(operation.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def decisions(request: web.Request) -> web.Response:
        if (refusal := _refusal(operation, request)) is not None:
            return refusal
        since_ms = _number(request.query.get("since", "0"))
        if since_ms is None:
            return web.Response(status=400, text="since is a time in Unix milliseconds\n")
        marks = await operation.tuning.tuner.annotations(since_ms) if operation.tuning else []
        return web.json_response([asdict(mark) for mark in marks])

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/decisions", decisions)
    return app


def _refusal(operation: Operation, request: web.Request) -> web.Response | None:
    """Refuse who does not bear the token of /decisions."""
    if operation.token_key is None:
        return web.Response(status=503, text="not started yet\n")
    scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
    wanted = operation.token_key.decisions_token().encode()
    # Compared as bytes: a header may hold anything, even what is no UTF-8.
    is_known = hmac.compare_digest(offered.strip().encode(errors="surrogateescape"), wanted)
    if scheme.lower() == "bearer" and is_known:
        return None
    headers = {"WWW-Authenticate": "Bearer"}
    return web.Response(status=401, headers=headers, text="a bearer token is needed\n")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
