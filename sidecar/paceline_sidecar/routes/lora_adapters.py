"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, on the admin port only.

Bodies are those that vLLM takes. Whoever may load an adapter may have the engine read any folder
of its container: that is for the admin port, and for those who hold its token.
"""

from typing import TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.connection import read_body
from paceline_sidecar.errors import InvalidRequest, Unauthorized
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.runtime_patch import AdapterName, AdapterPath
from paceline_sidecar.service import Service
from paceline_wire import AdaptersState, LoadAdapter, UnloadAdapter

_MAX_BODY_BYTES = 64 * 1024


class LoadRequest(msgspec.Struct):
    """An adapter as PEFT saves it: a folder of the engine's container, or `hf://ORG/NAME@COMMIT`."""

    lora_name: AdapterName
    lora_path: AdapterPath


class UnloadRequest(msgspec.Struct):
    """An adapter that was loaded."""

    lora_name: AdapterName


Body = TypeVar("Body", LoadRequest, UnloadRequest)


def adapters_router(service: Service, token: BearerKeys | None) -> APIRouter:
    """LoRA adapters, loaded and unloaded while the engine serves."""
    router = APIRouter(prefix="/v1")

    @router.post("/load_lora_adapter")
    async def load(request: Request) -> Response:
        body = await _understand(request, LoadRequest, token)
        if body.lora_name == service.name:
            message = f"lora_name must differ from the model's own name, got {body.lora_name!r}"
            raise InvalidRequest(message, param="lora_name")
        change = LoadAdapter(call=0, name=body.lora_name, path=body.lora_path)
        return _told(await service.backend.change_adapters(change), param="lora_path")

    @router.post("/unload_lora_adapter")
    async def unload(request: Request) -> Response:
        body = await _understand(request, UnloadRequest, token)
        change = UnloadAdapter(call=0, name=body.lora_name)
        return _told(await service.backend.change_adapters(change), param="lora_name")

    return router


async def _understand(request: Request, kind: type[Body], token: BearerKeys | None) -> Body:
    if token is None:
        raise Unauthorized("Adapters cannot be changed: no token file is set.")
    token.check(request.headers.get("authorization"))
    body = await read_body(request, max_bytes=_MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(str(error), param=None) from error


def _told(state: AdaptersState, *, param: str) -> Response:
    if state.error is not None:
        raise InvalidRequest(state.error, param=param)
    body = msgspec.json.encode({"lora_adapters": state.adapters})
    return Response(body, media_type="application/json")
