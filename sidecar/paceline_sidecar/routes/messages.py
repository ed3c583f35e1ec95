"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.anthropic.answer import MessagesBuilder, TokenCount
from paceline_sidecar.anthropic.request import CountTokensRequest, MessagesRequest
from paceline_sidecar.connection import while_connected
from paceline_sidecar.openai.job import Caller, chat_job
from paceline_sidecar.routes.endpoint import Endpoint, json_response
from paceline_sidecar.submit import Job
from paceline_sidecar.text.codec import Codec


def messages_router(endpoint: Endpoint) -> APIRouter:
    """Serve messages."""
    router, service = APIRouter(), endpoint.service

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        return await endpoint.generate(request, MessagesRequest, _job, MessagesBuilder)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        endpoint.check_key(request)
        body = await endpoint.read(request, CountTokensRequest)
        endpoint.adapter(body.model)
        codec = service.serving().codec
        job = chat_job(body.chat, Caller(arrived_at=service.clock()))
        tokens = await while_connected(request.receive, _num_tokens(job, codec))
        return json_response(TokenCount(tokens))

    return router


async def _num_tokens(job: Job, codec: Codec) -> int:
    return sum(map(len, await job.encode(codec)))


def _job(body: MessagesRequest, caller: Caller) -> Job:
    return chat_job(body.chat, caller)
