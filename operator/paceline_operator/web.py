"""/healthz, /readyz and /metrics of the operator, and what people and other replicas ask it.

/decisions and /reports ask for a token: they name services and pods and say how they are loaded.
"""

import hmac
import math
from dataclasses import asdict, dataclass

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from paceline_operator.operation import Operation
from paceline_operator.sharding.peers import (
    DECISIONS_PATH,
    MAX_REPORTS_BYTES,
    REPORTS_PATH,
    read_reports,
)


def create_app(operation: Operation) -> web.Application:
    """Serve what probes, Prometheus, Grafana and other replicas ask."""
    pages = _Pages(operation)
    app = web.Application(client_max_size=MAX_REPORTS_BYTES)
    app.router.add_get("/healthz", pages.alive)
    app.router.add_get("/readyz", pages.ready)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get(DECISIONS_PATH, pages.decisions)
    app.router.add_post(REPORTS_PATH, pages.reports)
    return app


@dataclass(frozen=True, slots=True)
class _Pages:
    operation: Operation

    async def alive(self, _: web.Request) -> web.Response:
        if problem := self.operation.illness():
            return web.Response(status=500, text=f"{problem}\n")
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        operation = self.operation
        if not operation.has_started:
            problem = operation.start_problem or "not started yet"
            return web.Response(status=503, text=f"{problem}\n")
        if operation.probe is not None and (problem := operation.probe.problem()):
            return web.Response(status=503, text=f"{problem}\n")
        return web.Response(text="leading\n" if operation.is_leading else "standing by\n")

    async def metrics(self, _: web.Request) -> web.Response:
        self.operation.refresh_metrics()
        body = generate_latest(self.operation.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def decisions(self, request: web.Request) -> web.Response:
        """Give the decisions of all replicas, or with `own` those of this one."""
        key, tuning, peers = self.operation.token_key, self.operation.tuning, self.operation.peers
        if (refusal := _refusal(request, key.decisions_token() if key else None)) is not None:
            return refusal
        since_ms = _number(request.query.get("since", "0"))
        if since_ms is None:
            return web.Response(status=400, text="since is a time in Unix milliseconds\n")
        marks = await tuning.tuner.annotations(since_ms) if tuning else []
        if peers is not None and "own" not in request.query:
            marks = [*marks, *await peers.annotations(since_ms)]
        return web.json_response(
            [asdict(mark) for mark in sorted(marks, key=lambda mark: mark.time)]
        )

    async def reports(self, request: web.Request) -> web.Response:
        """Take what another replica concluded."""
        key, tuning = self.operation.token_key, self.operation.tuning
        if (refusal := _refusal(request, key.reports_token() if key else None)) is not None:
            return refusal
        if tuning is None or not self.operation.is_leading:
            return web.Response(status=409, text="this replica does not lead\n")
        try:
            read_reports(await request.read(), tuning.heard)
        except msgspec.MsgspecError as problem:
            return web.Response(status=400, text=f"no reports: {problem}\n")
        return web.Response(status=204)


def _refusal(request: web.Request, token: str | None) -> web.Response | None:
    """Refuse who does not bear this token; None is one that is not known yet."""
    if token is None:
        return web.Response(status=503, text="not started yet\n")
    scheme, _, offered = request.headers.get("Authorization", "").partition(" ")
    # Compared as bytes: a header may hold anything, even what is no UTF-8.
    is_known = hmac.compare_digest(offered.strip().encode(errors="surrogateescape"), token.encode())
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
