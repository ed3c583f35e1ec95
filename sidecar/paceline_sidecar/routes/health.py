"""`/health/live` and `/health/ready`."""

from fastapi import APIRouter
from starlette.responses import JSONResponse

from paceline_sidecar.service import Service


def health_router(service: Service) -> APIRouter:
    """Alive is answering; ready is being able to serve a request now."""
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        missing = service.missing()
        if missing:
            return JSONResponse({"status": "not ready", "missing": missing}, status_code=503)
        return JSONResponse({"status": "ready", "missing": []})

    return router
