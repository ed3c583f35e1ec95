"""`GET /metrics`: Prometheus text, built from state at the moment of the scrape."""

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response


def metrics_router(registry: CollectorRegistry) -> APIRouter:
    """Text or OpenMetrics, as the scraper asks."""
    router = APIRouter()

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return router
