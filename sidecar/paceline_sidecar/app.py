"""Wire the two applications, the public one and the admin port's; no behaviour of their own."""

import math
from functools import partial
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from paceline_sidecar.anthropic.error_response import is_of_messages, reshaped
from paceline_sidecar.batches.runner import BatchRunner
from paceline_sidecar.batches.store import BatchStore, persistent_secret
from paceline_sidecar.errors import SidecarError
from paceline_sidecar.every_answer import EveryAnswer
from paceline_sidecar.keys import BearerKeys
from paceline_sidecar.live.pod import LivePod
from paceline_sidecar.metrics.collector import Exposition
from paceline_sidecar.openai.error_response import (
    ErrorBody,
    ErrorObject,
    plain_response,
    response_of,
)
from paceline_sidecar.routes.batches import batches_router, line_answerer
from paceline_sidecar.routes.completions import completions_router
from paceline_sidecar.routes.documents import documents_router
from paceline_sidecar.routes.endpoint import Endpoint
from paceline_sidecar.routes.live import live_router
from paceline_sidecar.routes.lora_adapters import adapters_router
from paceline_sidecar.routes.messages import messages_router
from paceline_sidecar.routes.models import models_router
from paceline_sidecar.routes.pooling import pooling_router
from paceline_sidecar.routes.probes import probes_router
from paceline_sidecar.routes.responses import responses_router
from paceline_sidecar.routes.runtime import runtime_router
from paceline_sidecar.routes.vllm import vllm_router
from paceline_sidecar.runtime_control import RuntimeControl
from paceline_sidecar.service import Service
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.tracing.trace import Trace

_MAX_LINE_BYTES = 1024 * 1024
# A temporary folder lies on the node's own disk, and a node whose disk is full evicts its pods.
_MAX_TEMPORARY_BYTES = 256 * 1024 * 1024


def served(app: FastAPI, service: Service) -> ASGIApp:
    """Wrap the application in the middleware that every answer passes."""
    return EveryAnswer(app, leaving=lambda: service.leaving, clock=service.clock)


def create_public_app(service: Service, settings: SidecarSettings, *, batch_dir: Path) -> FastAPI:
    """Wire the OpenAI API, health and metrics."""
    keys = None
    if settings.api_keys_file is not None:
        # In a folder that stays, callers have the names that they had before a restart.
        stays = settings.batch_dir is not None
        secret = persistent_secret(batch_dir) if stays else None
        keys = BearerKeys(settings.api_keys_file, secret)
    endpoint = Endpoint(service, keys, settings.max_body_bytes, settings.load_report)
    # Whoever reaches this port may scrape it: the names of callers are not for them.
    app = _app(service, settings, by_key=False)
    app.include_router(completions_router(endpoint))
    app.include_router(responses_router(endpoint))
    app.include_router(messages_router(endpoint))
    app.include_router(pooling_router(endpoint, pooling=settings.pooling))
    app.include_router(models_router(endpoint))
    app.include_router(vllm_router(endpoint))
    app.include_router(_batches(endpoint, settings, batch_dir))
    if settings.docs:
        app.include_router(documents_router(has_keys=keys is not None))
    return app


def _batches(endpoint: Endpoint, settings: SidecarSettings, folder: Path) -> APIRouter:
    service = endpoint.service
    stays = settings.batch_dir is not None
    store = BatchStore(folder, max_bytes=math.inf if stays else _MAX_TEMPORARY_BYTES)
    runner = BatchRunner(
        store,
        line_answerer(endpoint, settings.pooling),
        is_open=lambda: not service.missing(),
        concurrency=settings.batch_concurrency,
        max_line_bytes=min(settings.max_body_bytes, _MAX_LINE_BYTES),
    )
    service.chores.append(runner.run)
    return batches_router(endpoint, store, runner, max_file_bytes=settings.batch_max_file_bytes)


def create_admin_app(
    service: Service, control: RuntimeControl, settings: SidecarSettings
) -> FastAPI:
    """Wire the runtime API, the live page, health and metrics."""
    path = settings.runtime_token_file
    token = None if path is None else BearerKeys(path)
    app = _app(service, settings, by_key=settings.api_keys_file is not None)
    app.include_router(runtime_router(service, control, token))
    app.include_router(adapters_router(service, token))
    live = LivePod(service, control.log, control.tuner)
    service.chores.append(live.remember)
    app.include_router(live_router(service, live, token))
    return app


def _app(service: Service, settings: SidecarSettings, *, by_key: bool) -> FastAPI:
    # Traces are ours (tracing/): FastAPI's own would have a span for every probe, too.
    app = FastAPI(openapi_url=None, telemetry={"tracing": False, "metrics": False, "logs": False})
    app.add_exception_handler(SidecarError, partial(_answer_error, service))
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_fault)
    exposition = Exposition(vllm=settings.vllm_metrics, by_key=by_key)
    app.include_router(probes_router(service, exposition))
    return app


async def _answer_error(service: Service, request: Request, error: Exception) -> Response:
    if not isinstance(error, SidecarError):
        raise error
    _note_error(request, error)
    answer = response_of(error, away_s=service.outage.remaining_s)
    return _in_shape(request, answer, str(error))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path or a wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = ErrorBody(ErrorObject(message, "invalid_request_error", None, None))
    headers = dict(error.headers) if error.headers else None
    return _in_shape(request, plain_response(error.status_code, body, headers), message)


def _answer_fault(request: Request, error: Exception) -> Response:
    """Answer our own mistake: the log has it, the client learns no detail."""
    _note_error(request, error)
    message = "The server made a mistake."
    body = ErrorBody(ErrorObject(message, "server_error", None, None))
    return _in_shape(request, plain_response(500, body), message)


def _note_error(request: Request, error: Exception) -> None:
    trace: Trace | None = request.scope.get("trace")
    if trace is not None:
        trace.error = error


def _in_shape(request: Request, answer: Response, message: str) -> Response:
    """Return an error in the shape of the API that was asked."""
    if is_of_messages(request.url.path):
        return reshaped(answer, message, request.scope.get("request_id"))
    return answer
