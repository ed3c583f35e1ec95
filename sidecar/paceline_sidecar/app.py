"""The two applications: wiring, no behaviour."""

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.openai.error_response import (
    ErrorBody,
    ErrorObject,
    plain_response,
    response_of,
)
from paceline_sidecar.request_id import RequestId
from paceline_sidecar.routes.adapters import adapters_router
from paceline_sidecar.routes.chat import chat_router
from paceline_sidecar.routes.completions import completions_router
from paceline_sidecar.routes.health import health_router
from paceline_sidecar.routes.metrics import metrics_router
from paceline_sidecar.routes.models import models_router
from paceline_sidecar.routes.numbers import numbers_router
from paceline_sidecar.routes.runtime import runtime_router
from paceline_sidecar.runtime_control import RuntimeControl
from paceline_sidecar.service import Service
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.telemetry.collector import registry_of


def create_public_app(service: Service, settings: SidecarSettings) -> FastAPI:
    """The OpenAI API, health and metrics."""
    keys = None if settings.api_keys_file is None else BearerKeys(settings.api_keys_file)
    limit = settings.max_body_bytes
    app = _app(service, registry_of(service, vllm=settings.vllm_metrics))
    app.include_router(completions_router(service, keys=keys, max_body_bytes=limit))
    app.include_router(chat_router(service, keys=keys, max_body_bytes=limit))
    app.include_router(
        numbers_router(service, keys=keys, max_body_bytes=limit, pooling=settings.pooling)
    )
    app.include_router(models_router(service, keys=keys))
    return app


def create_admin_app(
    service: Service, control: RuntimeControl, settings: SidecarSettings
) -> FastAPI:
    """The runtime API, health and metrics."""
    path = settings.runtime_token_file
    app = _app(service, registry_of(service, vllm=settings.vllm_metrics))
    token = None if path is None else BearerKeys(path)
    app.include_router(runtime_router(service, control, token))
    app.include_router(adapters_router(service, token))
    return app


def _app(service: Service, registry: CollectorRegistry) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_middleware(RequestId, clock=service.clock)
    app.add_exception_handler(SidecarError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_fault)
    app.include_router(health_router(service))
    app.include_router(metrics_router(registry))
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, SidecarError):
        raise error
    return response_of(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """An unknown path, a wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = ErrorBody(ErrorObject(message, "invalid_request_error", None, None))
    headers = dict(error.headers) if error.headers else None
    return plain_response(error.status_code, body, headers)


async def _answer_fault(_: Request, __: Exception) -> Response:
    """Our own mistake: the log has it, the client learns no detail."""
    body = ErrorBody(ErrorObject("The server made a mistake.", "server_error", None, None))
    return plain_response(500, body)
