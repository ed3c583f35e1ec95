"""`GET /v1/models`: the model that is served, and its LoRA adapters."""

import time

from fastapi import APIRouter
from starlette.requests import Request

from paceline_sidecar.errors import ModelUnknown
from paceline_sidecar.routes.endpoint import Endpoint
from paceline_sidecar.service import Service


def models_router(endpoint: Endpoint) -> APIRouter:
    """List nothing until the engine has said what it serves."""
    router, service = APIRouter(), endpoint.service
    started = int(time.time())

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, object]:
        endpoint.check_key(request)
        return {"object": "list", "data": _cards(service, started)}

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, object]:
        endpoint.check_key(request)
        cards = {card["id"]: card for card in _cards(service, started)}
        if name not in cards:
            raise ModelUnknown(name)
        return cards[name]

    return router


def _cards(service: Service, started: int) -> list[dict[str, object]]:
    if not service.name:
        return []
    base = _card(service, started)
    adapters = service.backend.view.adapters
    return [base, *(base | {"id": name, "parent": service.name} for name in adapters)]


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
