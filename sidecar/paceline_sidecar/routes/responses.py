"""`POST /v1/responses`: the Responses API."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.openai.job import Caller, chat_job
from paceline_sidecar.responses_api.answer import ResponsesBuilder
from paceline_sidecar.responses_api.request import ResponsesRequest
from paceline_sidecar.routes.endpoint import Endpoint
from paceline_sidecar.submit import Job


def responses_router(endpoint: Endpoint) -> APIRouter:
    """Serve responses; none is kept, so none can be asked for again."""
    router = APIRouter()

    @router.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await endpoint.generate(request, ResponsesRequest, _job, ResponsesBuilder)

    return router


def _job(body: ResponsesRequest, caller: Caller) -> Job:
    return chat_job(body.chat, caller)
