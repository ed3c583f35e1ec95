"""`GET /v1/models`: the one model that is served."""

import time

from fastapi import APIRouter
from starlette.requests import Request

from paceline_sidecar.errors import ModelUnknown
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.routes.answering import authorise
from paceline_sidecar.service import Service


def models_router(service: Service, *, keys: BearerKeys | None) -> APIRouter:
    """Empty until the engine has said what it serves."""
    router = APIRouter()
    started = int(time.time())

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, object]:
        authorise(request, keys)
        return {"object": "list", "data": [_card(service, started)] if service.name else []}

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, object]:
        authorise(request, keys)
        if name != service.name:
            raise ModelUnknown(name)
        return _card(service, started)

    return router


def _card(service: Service, started: int) -> dict[str, object]:
    model = service.backend.view.model
    return {
        "id": service.name,
        "object": "model",
        "created": started,
        "owned_by": "paceline",
        "root": model.name if model else service.name,
        "max_model_len": model.max_model_len if model else None,
    }
