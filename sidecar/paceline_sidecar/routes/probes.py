"""`/health/live`, `/health/ready` and `/metrics`: what Kubernetes and Prometheus ask."""

import asyncio
from typing import Final

import msgspec
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.metrics.collector import Exposition
from paceline_sidecar.metrics.snapshot import snapshot
from paceline_sidecar.readiness import readiness
from paceline_sidecar.service import Service

_KUBELET: Final = "kube-probe/"
"""How a kubelet's user agent begins (k8s.io/kubernetes/pkg/probe/http)."""
HOLD_S: Final = 3.0
"""The longest that a probe's answer is held; less than the probes' `timeoutSeconds`."""
_LOOK_EVERY_S: Final = 0.02


def probes_router(service: Service, exposition: Exposition) -> APIRouter:
    """Serve probes and metrics on either port: alive is answering, ready is taking requests."""
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/health/ready")
    async def ready(request: Request) -> Response:
        if request.headers.get("user-agent", "").startswith(_KUBELET):
            await _started(service)
        missing = service.missing()
        body = msgspec.json.encode(readiness(missing, service.backend.view.loading))
        return Response(body, 503 if missing else 200, media_type="application/json")

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        text, content_type = await run_in_threadpool(exposition.write, snapshot(service), accept)
        return Response(text, headers={"content-type": content_type})

    return router


async def _started(service: Service) -> None:
    """Wait for the end of a start, so that a kubelet hears of it at once and not at its next probe.

    A pod has two probes, and they wait only while it starts: looking again costs next to nothing.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + HOLD_S
    while service.is_starting and loop.time() < give_up_at:  # noqa: ASYNC110 - seldom
        await asyncio.sleep(_LOOK_EVERY_S)
