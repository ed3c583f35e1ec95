"""`GET /v1/models`: the model that is served, and its LoRA adapters."""

import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.errors import ModelUnknown
from paceline_sidecar.openai.model_cards import ModelCard, ModelCards
from paceline_sidecar.routes.endpoint import Endpoint
from paceline_sidecar.service import Service


def models_router(endpoint: Endpoint) -> APIRouter:
    """List nothing until the engine has said what it serves."""
    router, service = APIRouter(), endpoint.service
    started = int(time.time())

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        endpoint.check_key(request)
        return _json(ModelCards(_cards(service, started)))

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        endpoint.check_key(request)
        cards = {card.id: card for card in _cards(service, started)}
        if name not in cards:
            raise ModelUnknown(name)
        return _json(cards[name])

    return router


def _json(answer: ModelCard | ModelCards) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _cards(service: Service, started: int) -> list[ModelCard]:
    if not service.name:
        return []
    model = service.backend.view.model
    base = ModelCard(
        service.name,
        started,
        root=model.name if model else service.name,
        max_model_len=model.max_model_len if model else None,
    )
    adapters = service.backend.view.adapters
    replace = msgspec.structs.replace
    return [base, *(replace(base, id=name, parent=service.name) for name in adapters)]
