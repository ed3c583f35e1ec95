"""`POST /v1/completions` and `POST /v1/chat/completions`: text out."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.chat_response import ChatResponseBuilder
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.completion_response import CompletionResponseBuilder
from paceline_sidecar.openai.job import chat_job, completion_job
from paceline_sidecar.routes.endpoint import Endpoint


def completions_router(endpoint: Endpoint) -> APIRouter:
    """Serve plain completions and chats.

    As plain routes: what FastAPI's own do besides is not used here, and held for every stream.
    """
    router = APIRouter()

    async def completions(request: Request) -> Response:
        return await endpoint.generate(
            request, CompletionRequest, completion_job, CompletionResponseBuilder
        )

    async def chat_completions(request: Request) -> Response:
        return await endpoint.generate(request, ChatRequest, chat_job, ChatResponseBuilder)

    router.add_route("/v1/completions", completions, methods=["POST"])
    router.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
    return router
