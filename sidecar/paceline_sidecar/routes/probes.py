"""`/health/live`, `/health/ready` and `/metrics`: what Kubernetes and Prometheus ask."""

import msgspec
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.metrics.collector import Exposition
from paceline_sidecar.metrics.snapshot import snapshot
from paceline_sidecar.readiness import readiness
from paceline_sidecar.service import Service


def probes_router(service: Service, exposition: Exposition) -> APIRouter:
    """Serve both on either port: alive means it answers, ready that it can take a request now."""
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/health/ready")
    async def ready() -> Response:
        missing = service.missing()
        body = msgspec.json.encode(readiness(missing, service.backend.view.loading))
        return Response(body, 503 if missing else 200, media_type="application/json")

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        text, content_type = await run_in_threadpool(exposition.write, snapshot(service), accept)
        return Response(text, headers={"content-type": content_type})

    return router
